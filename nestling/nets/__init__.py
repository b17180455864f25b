"""The models of the papers as plain modules, free of anything federated."""

from nestling.nets.pretrained import Match, read_weights, start_from
from nestling.nets.registry import MODELS, Entry, build, example, names
from nestling.nets.residual import Dropped, Residual

__all__ = [
    "MODELS",
    "Dropped",
    "Entry",
    "Match",
    "Residual",
    "build",
    "example",
    "names",
    "read_weights",
    "start_from",
]
