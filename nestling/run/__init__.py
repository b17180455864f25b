"""Experiments: their settings, their rounds, their evaluation, and how they survive being killed."""

from nestling.run.experiment import Result, resume, run
from nestling.run.loaded import LoadedRun, load
from nestling.run.presets import PRESETS, find
from nestling.settings import Data, Evaluate, Experiment, FleetSettings, Model

__all__ = [
    "PRESETS",
    "Data",
    "Evaluate",
    "Experiment",
    "FleetSettings",
    "LoadedRun",
    "Model",
    "Result",
    "find",
    "load",
    "resume",
    "run",
]
