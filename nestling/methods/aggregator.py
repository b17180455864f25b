"""`Aggregator`: how the updates of a round become one model; unless a part has another one, their weighted mean."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from nestling.cut import Plan
from nestling.cut.extract import State
from nestling.methods.messages import Update


class Aggregator(Protocol):
    """Merges the updates of one round; a new one is asked for in each round (`nestling.methods.Part.aggregator`)."""

    @property
    def clients(self) -> int:
        """The number of clients whose updates arrived in this round."""

    def add(self, update: Update, weight: float) -> None:
        """Add an update; `weight` is that of its clients in a mean, which a rule may leave aside."""

    def value(self) -> dict[str, Tensor]:
        """Return the merged model with all its tensors, after the last update.

        What does not merge has its value before the round: tensors that belong to sub-models or to clients.
        """

    def gathered(self, name: str) -> Tensor:
        """Return the weight that each coordinate of a tensor gathered, in its shape; 0 where it keeps its value."""

    def submodels(self) -> dict[str, dict[str, Tensor]]:
        """Return the merged tensors that belong to one sub-model alone: key of its plan → name → tensor."""

    def recorded(self) -> dict[str, Any]:
        """Return what the round's line in metrics.jsonl says about the merge, after `value`."""


class Mean(Aggregator, Protocol):
    """The weighted mean of a round's updates, which other rules may be built on."""

    def sent(self, plan: Plan) -> State:
        """Return the slice that the clients with this plan received: their change is counted from there."""


@runtime_checkable
class Metered(Protocol):
    """An aggregator that updates reach in messages of its own (`nestling.methods.Part.upload_bytes`)."""

    def traffic(self) -> tuple[int, int]:
        """Return the bytes of these messages, after `value`: sent by all clients, and to them."""
