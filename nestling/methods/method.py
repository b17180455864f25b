"""`Method`: a choice of slice per client and round, and the few things beside it in which the papers differ.

A method is a value made of module-level functions. It can be copied with other parts put in
(``dataclasses.replace(heterofl(), plan=…)``) and sent to workers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

from torch import Tensor

from nestling.axes import AxisMap
from nestling.cut import Plan, plan
from nestling.cut.extract import Same
from nestling.methods.between import After, Between, State
from nestling.methods.context import ClientContext
from nestling.methods.parts.losses import Loss, cross_entropy


@dataclass(frozen=True)
class Turn:
    """One client's turn in one round: all that its slice may depend on.

    Attributes
    ----------
    axes
        The axes of the whole model.
    parameters
        The names of its parameters; the other names in `axes.dims` are buffers.
    ratio
        The level that the client can carry, in (0, 1]: of the width, or of whatever the method scales.
    round
        The round, counted from 1.
    client
        The client's number.
    seed
        Differs from client to client and round to round, and is the same whenever the experiment is repeated.
    notes
        What the server remembers for the method.
    """

    axes: AxisMap
    parameters: frozenset[str]
    ratio: float
    round: int
    client: int
    seed: int
    notes: State = field(default_factory=dict)


def everything(turn: Turn) -> Plan:
    """The whole model, whatever the client can carry."""
    return Plan(key="full")


def prefix(turn: Turn) -> Plan:
    """The first units of every axis, as many as the client can carry."""
    return _prefix(Same(turn.axes), turn.ratio)


@lru_cache(maxsize=64)
def _prefix(axes: Same, ratio: float) -> Plan:
    """One plan for all clients of a level: making it takes as long as a step of a small model."""
    return plan(axes.axes, ratio)


def nothing(axes: AxisMap) -> frozenset[str]:
    """No tensor at all."""
    return frozenset()


def the_logits(output: Tensor) -> Tensor:
    """The model returns logits and nothing else."""
    return output


def as_they_are(axes: AxisMap, plan: Plan) -> dict[str, float]:
    """Nothing of a sub-model starts at another value than the whole model's."""
    return {}


def no_notes(turn: Turn) -> dict[str, Tensor]:
    """The server remembers nothing but the model."""
    return {}


def as_merged(turn: Turn) -> State | None:
    """The whole model is what slices are merged into."""
    return None


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
    predict
        The logits, (samples, classes), in what the model returns: for models that return more than that.
    deploy
        The sub-model of a level, for testing and for devices; the round and client of its turn mean nothing.
    sized
        Whether clients of different levels get different slices; if not, the global model is the sub-model of ratio 1,
        and no other is tested.
    private
        The state names that every client keeps to itself: they start as everybody's and are never merged.
    inconsistent
        The state names that every sub-model (every key of a plan) has for itself: they are averaged among the clients
        that trained it, and never meet those of other sub-models (NeFL).
    begin
        Where a sub-model's own tensors start at other values than the whole model's: (axes, plan) → name → value.
    frozen
        The names of parameters that are not trained.
    static
        Whether norms keep no running statistics while training, and statistics are asked for before tests.
    scaler
        Whether hidden layers divide their outputs by the ratio while training (HeteroFL).
    masked
        Whether the loss looks at the client's own classes only, and only their rows of the last layer merge.
    weighting
        How much a client counts when slices are merged: all the same, by its samples, or by its ratio.
    alike
        Whether the server must take the plain mean, in which all clients count alike, whatever its settings could say.
    proximal
        FedProx's μ; 0 for none.
    remember
        What a client remembers for its next turn, from its context after training and the slice it was given:
        ``kind/tensor`` → value, shaped like that tensor of its slice. The next context has it as its `memory`.
    notes
        What the server remembers for the method before the first round; the turn's round and client mean nothing.
    between
        What the server does after a round's merge.
    endless
        Whether `between` ignores how many rounds there will be, so that a run can be extended to more of them.
    whole
        The whole model that is tested and saved, from a turn's notes, statistics of norms included; None where it is
        what slices are merged into. The turn's round and client mean nothing.
    unlabelled
        Whether the server needs samples without labels (data.unlabelled).
    """

    name: str
    plan: Callable[[Turn], Plan] = prefix
    loss: Loss = cross_entropy
    predict: Callable[[Any], Tensor] = the_logits
    deploy: Callable[[Turn], Plan] = prefix
    sized: bool = True
    private: Callable[[AxisMap], frozenset[str]] = nothing
    inconsistent: Callable[[AxisMap], frozenset[str]] = nothing
    begin: Callable[[AxisMap, Plan], Mapping[str, float]] = as_they_are
    frozen: Callable[[AxisMap], frozenset[str]] = nothing
    static: bool = True
    scaler: bool = False
    masked: bool = False
    weighting: Literal["none", "samples", "width"] = "none"
    alike: bool = False
    proximal: float = 0.0
    remember: Callable[[ClientContext, State], dict[str, Tensor]] | None = None
    notes: Callable[[Turn], dict[str, Tensor]] = no_notes
    between: Callable[[Between], After] | None = None
    endless: bool = False
    whole: Callable[[Turn], State | None] = as_merged
    unlabelled: bool = False
