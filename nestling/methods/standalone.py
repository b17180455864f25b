"""Standalone: every client trains a model of its own, of the size it can carry, and shares nothing.

The baseline that all of the papers compare with. Its global accuracy is the mean over clients' own models on the whole
test set; its local accuracy is that of each client's own model on its own share.
"""

from __future__ import annotations

from nestling.axes import AxisMap
from nestling.methods.method import Method


def all_of_it(axes: AxisMap) -> frozenset[str]:
    """Every tensor is private."""
    return frozenset(axes.dims)


def standalone(masked: bool = False) -> Method:
    """Return the method without federation.

    >>> standalone().private is all_of_it
    True
    """
    return Method("standalone", private=all_of_it, masked=masked)
