"""Federated Dropout: every device trains a random set of channels, drawn anew each round.

Caldas et al., Expanding the Reach of Federated Learning by Reducing Client Resource Requirements, 2018; with a width
per client, as the baseline of FedRolex (2022).

Departures: one set is drawn per axis, not per layer, so layers that are added to each other keep the same channels. In
the authors' code of FedRolex each convolution draws its own, and identity skips add unrelated channels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from nestling.cut import Plan, plan
from nestling.methods.context import Participant, RoundContext
from nestling.methods.heterofl import heterofl
from nestling.methods.method import Method
from nestling.methods.part import PlanPart


@dataclass(frozen=True)
class RandomPlan(PlanPart):
    """A random set of every axis, drawn for each client and round."""

    def plan(self, round: RoundContext, who: Participant) -> Plan:
        """Return the set of a client."""
        return plan(round.setup.axes, who.level.ratio, "random", seed=who.seed)


def fed_dropout(scaler: bool = True, masked: bool = True) -> Method:
    """Return Federated Dropout.

    >>> fed_dropout().plan
    RandomPlan()
    """
    return replace(heterofl(scaler, masked), name="fed-dropout", plan=RandomPlan())
