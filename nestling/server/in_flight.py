"""`Flights`: the clients that train while the server takes its steps, and the models that they began with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True)
class InFlight:
    """A client that trains: what it trains follows from its number and that of the round in which it began.

    Attributes
    ----------
    client
        Its number.
    round
        The number of the step of the server that was next when it began, counted from 1.
    arrives
        When its update arrives, in seconds of the simulated clock.
    """

    client: int
    round: int
    arrives: float


@dataclass(frozen=True, eq=False)
class Version:
    """The model of an earlier step.

    Attributes
    ----------
    model
        The global model.
    submodels
        The tensors that belong to one sub-model alone: key of its plan → name → tensor.
    """

    model: dict[str, Tensor]
    submodels: dict[str, dict[str, Tensor]]


@dataclass(frozen=True, eq=False)
class Flights:
    """The clients that train, and what they began with.

    Attributes
    ----------
    clients
        The clients.
    versions
        The models that they began with, by the number of the round.
    """

    clients: tuple[InFlight, ...] = ()
    versions: Mapping[int, Version] = field(default_factory=dict)
