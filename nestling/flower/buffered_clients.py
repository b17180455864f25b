"""`BufferedFlowerClients`: real devices that train all the time, for a server that waits for nobody (`server.buffer`).

Updates are merged as they arrive. Devices that train when the server ends are not waited for when it goes on: their
replies belong to requests that nobody knows any more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from nestling.client.worker import Worker
from nestling.errors import DeviceError
from nestling.events import report
from nestling.flower.flower_clients import FlowerClients, LastSlice, TooFewReplies
from nestling.flower.link import Answer
from nestling.flower.nodes import Nodes, reason_of
from nestling.flower.update_checks import CheckedUpdate, IssuedJob, NormBound, checked_update
from nestling.methods.context import Participant, Setup
from nestling.methods.messages import TrainJob, Update
from nestling.server.buffered import Rest, kept_versions
from nestling.server.in_flight import Flights, InFlight
from nestling.server.state import ServerState

HandOut = Callable[[int, int, set[int]], list[Participant]]  # round, how many, who is busy → who begins


@dataclass(frozen=True, eq=False)
class _Open:
    """A job that was handed out, and when it ends."""

    issued: IssuedJob
    end: float


class BufferedFlowerClients(FlowerClients):
    """The clients of a run whose server waits for nobody: a `ClientPool`, and `Arrivals`.

    Parameters
    ----------
    setup, nodes, tester, test_samples, run, tick
        As of `FlowerClients`.
    hand_out
        Returns who begins next: a function of the round, of how many, and of the clients that cannot.
    at_once
        How many clients train at a time.
    """

    def __init__(
        self,
        setup: Setup,
        nodes: Nodes,
        tester: Worker,
        *,
        test_samples: int,
        run: str,
        tick: Callable[[], None] | None = None,
        hand_out: HandOut,
        at_once: int,
    ) -> None:
        super().__init__(setup, nodes, tester, test_samples=test_samples, run=run, tick=tick)
        self._who_begins, self._at_once = hand_out, at_once
        self._open: dict[str, _Open] = {}
        self._answers: list[Answer] = []  # replies that have arrived, and are not looked at yet
        self._turn = 0
        self._rest = Rest(Flights(), 0.0)

    def updates(self, before: ServerState) -> Iterator[tuple[int, Update]]:
        """Yield updates, each with the number of the round in which its client began, until the buffer is full."""
        setup, number = self._setup, before.round + 1
        self._report_lost(before)
        bound = NormBound(self._rules.norm_bound, setup.server.buffer)
        began: dict[int, int] = {}  # client → round, of the updates of this step
        late: list[TrainJob] = []
        failed: set[int] = set()
        merged = 0

        def admitted(updates: Iterator[Update]) -> Iterator[tuple[int, Update]]:
            nonlocal merged
            for update in updates:
                merged += 1
                yield began[update.who[0].client], update

        while len(began) < setup.server.buffer:
            self._fill(before, failed | began.keys())
            if not self._open:
                report("buffer not full", f"no other device is free: the server takes a step with {len(began)} updates")
                break
            one, checked = self._next(before)
            job = one.job
            if number - job.round > setup.server.max_staleness:
                late.append(job)
                steps = setup.server.max_staleness
                report("update too late", f"client {job.who.client} began more than {steps} steps ago: ignored")
            elif checked is not None:
                began[job.who.client] = job.round
                yield from admitted(bound.admit(checked.update, checked.size))
            else:
                failed.add(job.who.client)
        yield from admitted(bound.rest())
        if merged < self._rules.min_replies:
            raise TooFewReplies(f"{merged} updates arrived, and a step needs {self._rules.min_replies}")
        flights = tuple(InFlight(one.issued.job.who.client, one.issued.job.round, 0.0) for one in self._open.values())
        left = kept_versions(before, Flights(flights), setup.server.max_staleness)
        self._rest = Rest(left, before.totals.simulated_seconds, late, len(failed) + len(began) - merged)

    def rest(self) -> Rest:
        """Return what is left after the last update."""
        return self._rest

    def _fill(self, before: ServerState, done: set[int]) -> None:
        """Hand out jobs with the current model until enough clients train; those that are `done` with a step wait."""
        free = self._at_once - len(self._open)
        if not free:
            return
        number = before.round + 1
        round = before.context(self._setup, number=number)
        busy = done | {one.issued.job.who.client for one in self._open.values()}
        participants = self._who_begins(number, free, busy)
        plans = [(who, self._setup.method.client_plan(round, who)) for who in participants]
        jobs = [TrainJob(who, plan, number, round.lr) for who, plan in sorted(plans, key=lambda pair: pair[1].key)]
        end = time.monotonic() + self._rules.deadline
        issued = self._hand_out(jobs, LastSlice(self._setup, before))
        self._open |= {name: _Open(one, end) for name, one in issued.items()}

    def _next(self, before: ServerState) -> tuple[IssuedJob, CheckedUpdate | None]:
        """Wait for a reply; return its job and its update: None if it failed, is refused or did not come in time."""
        while True:
            while self._answers:
                answer = self._answers.pop(0)
                if answer.request in self._open:
                    issued = self._open.pop(answer.request).issued
                    return issued, self._update(before, issued, answer)
                report("reply ignored", f"a reply to the request {answer.request[:20]!r} came twice, or unasked")
            now, names, window = time.monotonic(), list(self._open), self._rules.window
            expired = [name for name in names if self._open[name].end <= now]
            start = self._turn % len(names)
            self._turn = start + window
            self._answers = self._link.pull(expired[:1] or names[start : start + window])
            if expired and not self._answers:  # what is there already is still fetched
                issued = self._open.pop(expired[0]).issued
                self._lost_to_deadline(issued.job, before.round + 1)
                return issued, None
            if not self._answers and self._turn >= len(names):
                time.sleep(self._rules.poll)

    def _update(self, before: ServerState, issued: IssuedJob, answer: Answer) -> CheckedUpdate | None:
        client, number = issued.job.who.client, before.round + 1
        if answer.packet is None:
            self._lost(client, number, "client failed", f"it failed: {reason_of(answer.error)}")
            return None
        if number - issued.job.round > self._setup.server.max_staleness:
            return None  # its model is not kept
        sent = before.version(issued.job.round).download(self._setup, issued.job.plan)
        try:
            checked = checked_update(self._setup, issued, sent, answer.packet)
        except DeviceError as problem:
            self._lost(client, number, "update refused", f"its update is refused: {problem}")
            return None
        if self._setup.clients_keep:
            self._note_kept(client, issued.job.round, checked.reply.kept)
        if self._tick is not None:
            self._tick()
        return checked

    def _report_lost(self, before: ServerState) -> None:
        """Report the clients that trained when the server was ended."""
        if before.flights.clients and not self._open:
            count = len(before.flights.clients)
            report(
                "training lost", f"{count} clients were training when the server ended: they begin again", count=count
            )
