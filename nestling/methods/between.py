"""What a method's server does between two rounds, beside merging: most do nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor, nn

from nestling.axes import AxisMap
from nestling.cut import Plan
from nestling.settings import LocalTraining

State = Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class Between:
    """What the server has in hand after a round's slices are merged.

    Attributes
    ----------
    model, axes, parameters
        The whole model (its own weights mean nothing), its axes, and the names of its parameters.
    before, state
        The global weights before the round and after it.
    gathered
        Gives the weight that each coordinate of a tensor gathered this round, in its shape; zero where nobody held it.
    notes
        What the server remembers for the method.
    round, rounds
        The round that is over, and how many there will be.
    clients
        How many clients there are in all.
    inputs, ready
        Unlabelled samples that the server may use, (samples, …), possibly none; and what makes a batch of them ready
        for the model.
    local, lr
        How clients train, and this round's learning rate.
    seed
        Differs from round to round, and is the same whenever the experiment is repeated.
    """

    model: nn.Module
    axes: AxisMap
    parameters: frozenset[str]
    before: State
    state: State
    gathered: Callable[[str], Tensor]
    notes: State
    round: int
    rounds: int
    clients: int
    inputs: Tensor
    ready: Callable[[Tensor], Tensor]
    local: LocalTraining
    lr: float
    seed: int


@dataclass(frozen=True, eq=False)
class After:
    """What comes of it: the weights to go on with, what to remember, and other networks to test beside them.

    Networks that come up on the way and are gone by the next round are tested if this round is: name → plan, with a key
    of its own, and weights.
    """

    state: dict[str, Tensor]
    notes: dict[str, Tensor]
    networks: Mapping[str, tuple[Plan, State]] = field(default_factory=dict)
