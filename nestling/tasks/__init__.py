"""Tasks: what a model learns and how it is measured."""

from nestling.tasks.classification import Classification
from nestling.tasks.language import LanguageTask
from nestling.tasks.regression import Regression
from nestling.tasks.task import Metric, Task

__all__ = ["Classification", "LanguageTask", "Metric", "Regression", "Task"]
