"""Tasks: what a model learns and how it is measured."""

from nestling.tasks.classification import Classification
from nestling.tasks.language import LanguageTask
from nestling.tasks.own_task import OwnTask
from nestling.tasks.regression import Regression
from nestling.tasks.segmentation import Segmentation
from nestling.tasks.task import Metric, Task
from nestling.tasks.token_task import masked_token, next_token

__all__ = [
    "Classification",
    "LanguageTask",
    "Metric",
    "OwnTask",
    "Regression",
    "Segmentation",
    "Task",
    "masked_token",
    "next_token",
]
