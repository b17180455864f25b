"""`ClientPool`: how a server reaches its clients, wherever they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from nestling.cut import Plan
from nestling.cut.extract import State
from nestling.methods.messages import BranchReply, Job, TrainJob, Update
from nestling.server.state import ServerState


class ClientPool(Protocol):
    """Clients of a simulation, or real devices."""

    def train(self, jobs: Sequence[TrainJob], before: ServerState) -> Iterator[Update | BranchReply]:
        """Train clients, each on its slice of the state before the round; yield their updates, decoded.

        With ``server.fan_in``, those of a branch of clients may come merged.
        """

    def ask(self, jobs: Sequence[Job], download: Callable[[Plan], State], state: ServerState) -> list[Any]:
        """Return the results of all jobs, in order; `download` returns the sub-model of a plan.

        The result of a `TestOwnDataJob` or a `TestClientModelJob` is None if the client gives none.
        """
