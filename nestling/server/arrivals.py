"""`SimulatedArrivals`: whose updates are there first, by the simulated clock of devices.

Who trains when follows from the clock alone, so it is known before anybody trains, and workers change nothing: all
clients of a buffer train side by side, each from the model that it was handed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import Protocol

from nestling.data.federated import ClientData
from nestling.events import report
from nestling.methods.context import Participant, Setup
from nestling.methods.messages import BranchReply, TrainJob, Update
from nestling.server.buffered import Rest, kept_versions
from nestling.server.client_pool import ClientPool
from nestling.server.cost_meter import CostMeter
from nestling.server.in_flight import Flights, InFlight
from nestling.server.state import ServerState


class Roster(Protocol):
    """The clients of a simulation."""

    def candidates(self, round: int) -> Iterator[int]:
        """Yield the clients that can begin in a round, in the order in which they are asked."""

    def participant(self, client: int, round: int) -> Participant:
        """Return a client as it begins in a round."""


@dataclass(eq=False)
class SimulatedArrivals:
    """The updates of a simulation, in the order of the simulated clock: `Arrivals`.

    Parameters
    ----------
    setup, roster, clients, costs, public
        The experiment, its clients, how they train, and the clock.
    at_once
        How many clients train at a time.
    """

    setup: Setup
    roster: Roster
    clients: ClientPool
    costs: CostMeter
    at_once: int
    public: ClientData | None = None
    _rest: Rest = field(default_factory=lambda: Rest(Flights(), 0.0), init=False)

    def updates(self, before: ServerState) -> Iterator[tuple[int, Update]]:
        """Yield the updates of a step: those of clients that began first, then by size, as in a round."""
        jobs, self._rest = self._schedule(before)
        jobs.sort(key=lambda job: (job.round, -self.costs.macs(job.plan, job.who.samples), job.who.client))
        for number, group in groupby(jobs, lambda job: job.round):
            for update in self.clients.train(list(group), before.version(number)):
                assert not isinstance(update, BranchReply)  # settings with both are refused
                yield number, update

    def rest(self) -> Rest:
        """Return what is left after the last update."""
        return self._rest

    def _schedule(self, before: ServerState) -> tuple[list[TrainJob], Rest]:
        """Return the jobs whose updates fill the buffer, and what is left then.

        At any moment, updates arrive before new jobs are handed out.
        """
        setup, number, now = self.setup, before.round + 1, before.totals.simulated_seconds
        flights, arrived, late = list(before.flights.clients), list[InFlight](), list[InFlight]()
        queue = _Queue(self.roster.candidates(number))
        while len(arrived) < setup.server.buffer:
            if not any(one.arrives <= now for one in flights):
                busy = {one.client for one in (*flights, *arrived)}
                for client in queue.take(self.at_once - len(flights), busy):
                    job = self._job(before, client, number)
                    seconds = self.costs.seconds(job, before.totals, before.context(setup, self.public))
                    flights.append(InFlight(client, number, now + seconds))
            if not flights:
                break
            first = min(flights, key=lambda one: (one.arrives, one.round, one.client))
            flights.remove(first)
            now = max(now, first.arrives)
            (arrived if number - first.round <= setup.server.max_staleness else late).append(first)
        if len(arrived) < setup.server.buffer:
            some = f"{len(arrived)} of {setup.server.buffer} updates" if arrived else "no update"
            report("buffer not full", f"no other client is online, so the server takes a step with {some}")
        if late:
            named = ", ".join(str(one.client) for one in late[:10]) + (", …" if len(late) > 10 else "")
            report(
                "update too late",
                f"{len(late)} updates began more than {setup.server.max_staleness} steps ago and are ignored ({named})",
                count=len(late),
            )
        jobs, discarded = ([self._job(before, one.client, one.round) for one in some] for some in (arrived, late))
        left = kept_versions(before, Flights(tuple(flights)), setup.server.max_staleness)
        return jobs, Rest(left, now, discarded)

    def _job(self, before: ServerState, client: int, number: int) -> TrainJob:
        """Return what a client trains that begins, or began, in a round."""
        round = before.context(self.setup, self.public, number)
        who = self.roster.participant(client, number)
        return TrainJob(who, self.setup.method.client_plan(round, who), number, round.lr)


class _Queue:
    """Candidates that are asked one after another; those that are busy are asked again.

    >>> queue = _Queue([3, 1, 2])
    >>> queue.take(1, busy={3}), queue.take(5, busy=set()), queue.take(1, busy=set())
    ([1], [3, 2], [])
    """

    def __init__(self, candidates: Iterable[int]) -> None:
        self._passed: list[int] = []
        self._others = iter(candidates)

    def take(self, count: int, busy: set[int]) -> list[int]:
        """Return at most `count` clients that are not busy."""
        taken: list[int] = []
        while len(taken) < count and (client := self._next(busy)) is not None:
            taken.append(client)
        return taken

    def _next(self, busy: set[int]) -> int | None:
        for place, client in enumerate(self._passed):
            if client not in busy:
                return self._passed.pop(place)
        for client in self._others:
            if client not in busy:
                return client
            self._passed.append(client)
        return None
