"""The models of the papers as plain modules; they know nothing of federated learning."""

from nestling.nets.models import MODELS, Entry, build, example, names
from nestling.nets.pretrained import Match, read_weights, start_from
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
