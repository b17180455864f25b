"""Experiments: their rounds, their evaluation, and how they survive being killed."""

from nestling.experiment.loaded import LoadedRun, load
from nestling.experiment.own_run import Federated, federate
from nestling.experiment.presets import PRESETS, find
from nestling.experiment.runner import Result, resume, run

__all__ = ["PRESETS", "Federated", "LoadedRun", "Result", "federate", "find", "load", "resume", "run"]
