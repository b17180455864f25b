"""Experiments: their settings, their rounds, their evaluation, and how they survive being killed."""

from nestling.run.config import Data, Evaluate, Experiment, FleetSettings, Model
from nestling.run.experiment import Result, resume, run
from nestling.run.presets import PRESETS, find
from nestling.run.take import take

__all__ = [
    "PRESETS",
    "Data",
    "Evaluate",
    "Experiment",
    "FleetSettings",
    "Model",
    "Result",
    "find",
    "resume",
    "run",
    "take",
]
