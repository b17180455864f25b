"""`Method`: a choice of slice per client and round, and the few things beside it in which the papers differ.

A method is a value made of module-level functions. It can be copied with other parts put in
(``dataclasses.replace(heterofl(), plan=…)``) and sent to workers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from nestling.axes import AxisMap
from nestling.cut import Plan, plan
from nestling.local import Loss, cross_entropy


@dataclass(frozen=True)
class Turn:
    """One client's turn in one round: all that its slice may depend on.

    Attributes
    ----------
    axes
        The axes of the whole model.
    ratio
        The width that the client can carry, in (0, 1].
    round
        The round, counted from 1.
    client
        The client's number.
    seed
        Differs from client to client and round to round, and is the same whenever the experiment is repeated.
    """

    axes: AxisMap
    ratio: float
    round: int
    client: int
    seed: int


def everything(turn: Turn) -> Plan:
    """The whole model, whatever the client can carry."""
    return Plan(key="full")


def prefix(turn: Turn) -> Plan:
    """The first units of every axis, as many as the client can carry."""
    return plan(turn.axes, turn.ratio)


def prefix_of(axes: AxisMap, ratio: float) -> Plan:
    """The sub-model of a level that is tested and handed out: the first units of every axis."""
    return plan(axes, ratio)


def nothing(axes: AxisMap) -> frozenset[str]:
    """Every tensor is shared."""
    return frozenset()


@dataclass(frozen=True)
class Method:
    """A method of federated learning.

    Attributes
    ----------
    name
        As in tables and on the command line.
    plan
        The slice that a client gets for its turn.
    loss
        What a client minimises.
    deploy
        The sub-model of a level, for testing and for devices: (axes, ratio) → plan.
    sized
        Whether clients of different levels get different slices; if not, only the whole model is tested.
    private
        The state names that every client keeps to itself: they start as everybody's and are never merged.
    scaler
        Whether hidden layers divide their outputs by the ratio while training (HeteroFL).
    masked
        Whether the loss looks at the client's own classes only, and only their rows of the last layer merge.
    weighting
        How much a client counts when slices are merged: all the same, by its samples, or by its ratio.
    proximal
        FedProx's μ; 0 for none.
    """

    name: str
    plan: Callable[[Turn], Plan] = prefix
    loss: Loss = cross_entropy
    deploy: Callable[[AxisMap, float], Plan] = prefix_of
    sized: bool = True
    private: Callable[[AxisMap], frozenset[str]] = nothing
    scaler: bool = False
    masked: bool = False
    weighting: Literal["none", "samples", "width"] = "none"
    proximal: float = 0.0
