"""Methods: who trains which slice, and what is special about it. One file per paper; a method is a chain of parts."""

from nestling.methods.context import ClientContext, Participant, RoundContext, Setup
from nestling.methods.method import Method
from nestling.methods.part import Part, PlanPart
from nestling.methods.registry import METHODS, make, names

__all__ = [
    "METHODS",
    "ClientContext",
    "Method",
    "Part",
    "Participant",
    "PlanPart",
    "RoundContext",
    "Setup",
    "make",
    "names",
]
