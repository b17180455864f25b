"""Who gets which slice, and what is done with it: one small file per method, each a value made of functions."""

from nestling.methods.method import Method, Turn
from nestling.methods.registry import METHODS, make, names

__all__ = ["METHODS", "Method", "Turn", "make", "names"]
