"""Tensors that every client keeps to itself: they start with the global values, and are never sent or merged.

For Standalone, and methods with local layers such as LG-FedAvg (nestling.methods.lg_fedavg).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from nestling.axes import AxisMap
from nestling.methods.context import Owner, Setup
from nestling.methods.part import Part


@dataclass(frozen=True)
class Private(Part):
    """Keep some tensors with the clients.

    Attributes
    ----------
    names
        A module-level function, or a `functools.partial` of one, that returns their state names.
    """

    names: Callable[[AxisMap], frozenset[str]]

    def owners(self, setup: Setup) -> Mapping[str, Owner]:
        """Claim the tensors for clients."""
        return dict.fromkeys(sorted(self.names(setup.axes)), "client")
