"""Federated Dropout: every device trains a random set of channels, drawn anew each round.

Caldas et al., Expanding the Reach of Federated Learning by Reducing Client Resource Requirements, 2018; with a width
per client, as in the baseline of FedRolex (§3.3.1, Eq. 5).

Departures: one set is drawn per axis, not per layer, so layers that are added to each other keep the same channels. In
the code of FedRolex's authors each convolution draws its own set, and identity skips add unrelated channels. A set has
⌈β · K⌉ units where Eq. 5 takes the floor; for the papers' levels both are equal.
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
    """A random set of units of every axis, drawn for each client and round (FedRolex, Eq. 5)."""

    def plan(self, round: RoundContext, who: Participant) -> Plan:
        """Return the units that a client trains."""
        return plan(round.setup.axes, who.level.ratio, "random", seed=who.seed)


def fed_dropout(scaler: bool = True, masked: bool = True) -> Method:
    """Return Federated Dropout.

    Parameters
    ----------
    scaler
        Whether hidden layers divide their outputs by the ratio in training (HeteroFL, §3.3).
    masked
        Whether the loss is over a client's own classes, whose rows alone are merged (HeteroFL, §4).

    Examples
    --------
    >>> fed_dropout().plan
    RandomPlan()
    """
    return replace(heterofl(scaler, masked), name="fed-dropout", plan=RandomPlan())
