"""`FlowerClients`: real devices as a `ClientPool`, whatever they do: late, failing, lying or silent."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from nestling.client.transport import travelling
from nestling.client.worker import Worker
from nestling.cut import Plan
from nestling.cut.extract import State
from nestling.errors import ConfigError, DeviceError, RunFailed
from nestling.events import report
from nestling.flower.array_codec import encode_tensor
from nestling.flower.link import Answer, EncodedTensor, Link, Packet, Request
from nestling.flower.node_messages import Training, raw, write
from nestling.flower.node_statistics import norm_statistics
from nestling.flower.node_tests import own_data_counts, own_model_answers
from nestling.flower.nodes import Nodes, RoundRules, reason_of
from nestling.flower.update_checks import IssuedJob, NormBound, checked_update
from nestling.methods.context import Setup
from nestling.methods.messages import (
    Job,
    JobEnvelope,
    NormStatisticsJob,
    TestClientModelJob,
    TestJob,
    TestOwnDataJob,
    TrainJob,
    Update,
)
from nestling.methods.secure.secure_aggregation import SecureAggregation
from nestling.server.cost_meter import awaited
from nestling.server.state import ServerState
from nestling.tasks.task import SampleTask

_GRACE = 600.0  # seconds for which a message stays valid after its deadline: clocks of machines differ


class TooFewReplies(RunFailed):
    """A round got fewer updates than it needs."""


class FlowerClients:
    """The clients of a run on devices: a `ClientPool`.

    Parameters
    ----------
    setup
        The experiment.
    nodes
        The devices.
    tester, test_samples
        Tests models on the server's own samples, and how many of these are for tests.
    run
        A text that tells this run from others, in what nodes keep.
    tick
        Called once for every client that is done, or lost.
    over_selection
        How many times as many clients begin in a round as it waits for; updates are then merged as they arrive.
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
        over_selection: float = 1.0,
    ) -> None:
        check_method(setup)
        self._setup, self._nodes, self._tester, self._run, self._tick = setup, nodes, tester, run, tick
        self._test_samples, self._more = test_samples, over_selection
        self.ignored: list[TrainJob] = []  # the jobs of the last round that it did not wait for

    @property
    def _link(self) -> Link:
        return self._nodes.link

    @property
    def _rules(self) -> RoundRules:
        return self._nodes.rules

    def train(self, jobs: Sequence[TrainJob], before: ServerState) -> Iterator[Update]:
        """Train clients and yield their updates, checked; clients that fail or are late are left out.

        Raise `TooFewReplies` at the end if the round got too little.
        """
        slices = LastSlice(self._setup, before)
        issued = self._hand_out(jobs, slices)
        wanted = max(self._rules.min_replies, awaited(len(issued), self._more))
        bound = NormBound(self._rules.norm_bound, wanted)
        merged: list[Plan] = []
        for update in self._checked(self._replies(issued, before.round + 1), slices, bound, wanted):
            merged.append(update.plan)
            yield update
        self.ignored = [one.job for one in issued.values()]  # `_replies` takes out those that are done
        self._check_enough(merged, len(jobs))

    def ask(self, jobs: Sequence[Job], download: Callable[[Plan], State], state: ServerState) -> list[Any]:
        """Return the results of all jobs, in order: the server tests on its own samples, devices do the rest."""
        setup, nodes = self._setup, self._nodes
        kinds = (TestJob, NormStatisticsJob, TestOwnDataJob, TestClientModelJob)
        by_kind: dict[type, list[Any]] = {kind: [job for job in jobs if type(job) is kind] for kind in kinds}
        results: dict[type, list[Any]] = {
            TestJob: [self._tester(JobEnvelope(job, download(job.plan))) for job in by_kind[TestJob]],
            NormStatisticsJob: norm_statistics(setup, nodes, by_kind[NormStatisticsJob], download),
            TestOwnDataJob: own_data_counts(setup, nodes, by_kind[TestOwnDataJob], download),
            TestClientModelJob: own_model_answers(
                setup,
                nodes,
                by_kind[TestClientModelJob],
                download,
                self._outputs_like,
                run=self._run,
                round=state.round,
            ),
        }
        return [results[type(job)].pop(0) for job in jobs]

    def _outputs_like(self, plan: Plan, state: State) -> torch.Tensor:
        """Return an empty tensor in the shape of a sub-model's outputs on all test samples."""
        first = self._tester(JobEnvelope(TestJob(plan, "test", 0, 1, 1), state))
        return torch.empty((self._test_samples, *first.shape[1:]), dtype=first.dtype)

    def _hand_out(self, jobs: Sequence[TrainJob], slices: LastSlice) -> dict[str, IssuedJob]:
        """Send all jobs; return them by the ids of their requests, in order."""
        issued: dict[str, IssuedJob] = {}
        for job in jobs:
            who, node = job.who, self._nodes.node(job.who.client)
            ticket = secrets.token_hex(8)
            header = Training(
                ticket=ticket,
                run=self._run,
                round=job.round,
                lr=job.lr,
                client=who.client,
                level=who.level.name,
                samples=who.samples,
                seed=who.seed,
                plan=raw(job.plan),
            )
            packet = Packet(write(header), slices.packed(job.plan))
            seconds = self._rules.deadline + _GRACE
            name = self._link.push(Request(node.id, "train", job.round, seconds, packet))
            if name is None:
                self._lost(who.client, job.round, "client unreachable", "its job could not be sent")
            else:
                issued[name] = IssuedJob(job, ticket)
        return issued

    def _replies(self, issued: dict[str, IssuedJob], round: int) -> Iterator[tuple[IssuedJob, Packet]]:
        """Yield the replies to jobs, in the order of the rules, until all are there or the deadline has passed.

        Jobs that are done or lost are taken out of `issued`.
        """
        in_order, window = self._rules.merge_order == "jobs" and self._more == 1, self._rules.window
        end = time.monotonic() + self._rules.deadline
        open_jobs = issued
        early: dict[str, Answer] = {}

        def first_ready() -> Iterator[tuple[IssuedJob, Packet]]:
            while open_jobs and (name := next(iter(open_jobs))) in early:
                answer = early.pop(name)
                yield from self._usable(open_jobs.pop(name), answer, round)

        turn, waited_for = 0, ""
        while open_jobs:
            late, names = time.monotonic() >= end, list(open_jobs)
            start = 0 if in_order or late else turn % len(names)
            asked = [name for name in names[start : start + window] if name not in early]
            arrived, turn = self._link.pull(asked), turn + window
            for answer in arrived:
                if answer.request not in open_jobs or answer.request in early:
                    report("reply ignored", f"a reply to the request {answer.request[:20]!r} came twice, or unasked")
                elif in_order:
                    early[answer.request] = answer
                else:
                    yield from self._usable(open_jobs.pop(answer.request), answer, round)
            if late:  # what is there already is still fetched; who is not there now is too late
                for name in asked:
                    if name in open_jobs and name not in early:
                        self._lost_to_deadline(open_jobs.pop(name).job, round)
            yield from first_ready()
            full = 0 < len(early) == window - 1 and len(open_jobs) > window
            if full and waited_for != (first := next(iter(open_jobs))):
                waited_for = first
                slow = open_jobs[first].job.who.client
                report(
                    "replies held back",
                    f"{len(early)} replies, as many as the window holds, and all later ones wait for client {slow}: "
                    "they are merged in the order of jobs (merge-order=arrival does not wait)",
                    logging.INFO,
                )
            if not arrived and open_jobs and not late:
                time.sleep(self._rules.poll)

    def _usable(self, issued: IssuedJob, answer: Answer, round: int) -> Iterator[tuple[IssuedJob, Packet]]:
        if answer.packet is None:
            self._lost(issued.job.who.client, round, "client failed", f"it failed: {reason_of(answer.error)}")
        else:
            yield issued, answer.packet

    def _checked(
        self, replies: Iterable[tuple[IssuedJob, Packet]], slices: LastSlice, bound: NormBound, wanted: int
    ) -> Iterator[Update]:
        """Yield the updates in replies that pass all checks, until there are as many as are wanted."""
        passed = 0
        for job, packet in replies:
            client, sent = job.job.who.client, slices.get(job.job.plan)
            try:
                update, reply, size = checked_update(self._setup, job, sent, packet)
            except DeviceError as problem:
                self._lost(client, job.job.round, "update refused", f"its update is refused: {problem}")
                continue
            if self._setup.clients_keep:
                self._note_kept(client, job.job.round, reply.kept)
            if self._tick is not None:
                self._tick()
            yield from bound.admit(update, size)
            passed += 1
            if passed == wanted:
                break
        yield from bound.rest()

    def _note_kept(self, client: int, round: int, kept: int) -> None:
        """Report an event if a client did not begin from what it kept in its last round, as far as that is known."""
        node = self._nodes.node(client)
        expected = max((number for number in node.kept if number < round), default=None)
        if expected not in (None, kept):
            report(
                "kept state lost",
                f"client {client} began from what it kept in round {kept}, not in round {expected}: was its node "
                "started again without a folder of its own?",
            )
        node.kept = [*(number for number in node.kept if number < round), round][-2:]

    def _check_enough(self, merged: Sequence[Plan], jobs: int) -> None:
        rules = self._rules
        if len(merged) < rules.min_replies:
            raise TooFewReplies(
                f"{len(merged)} of {jobs} clients sent an update, and a round needs {rules.min_replies}"
            )
        if rules.min_coverage and merged:
            axis, share = min(coverage(self._setup, merged).items(), key=lambda item: item[1])
            if share < rules.min_coverage:
                raise TooFewReplies(
                    f"the clients of this round trained {share:.0%} of the axis {axis!r}, and a round needs "
                    f"{rules.min_coverage:.0%}"
                )

    def _lost_to_deadline(self, job: TrainJob, round: int) -> None:
        limit = self._rules.deadline
        self._lost(
            job.who.client, round, "client late", f"it did not reply in {limit:g} s, and a later reply is ignored"
        )

    def _lost(self, client: int, round: int, kind: str, reason: str) -> None:
        self._nodes.rest(client, round)
        report(kind, f"client {client} is left out: {reason}")
        if self._tick is not None:
            self._tick()


class LastSlice:
    """The slice of the plan that was asked for last: jobs of one plan follow each other."""

    def __init__(self, setup: Setup, before: ServerState) -> None:
        self._setup, self._before = setup, before
        self._plan: Plan | None = None
        self._state: State = {}
        self._packed: dict[str, EncodedTensor] | None = None

    def get(self, plan: Plan) -> State:
        """Return the slice of a plan."""
        if plan != self._plan:
            self._plan, self._state, self._packed = plan, self._before.download(self._setup, plan), None
        return self._state

    def packed(self, plan: Plan) -> dict[str, EncodedTensor]:
        """Return the tensors of a slice that travel, as they travel."""
        state = self.get(plan)
        if self._packed is None:
            self._packed = {name: encode_tensor(state[name]) for name in travelling(self._setup, state)}
        return self._packed


def coverage(setup: Setup, plans: Iterable[Plan]) -> dict[str, float]:
    """Return the share of the units of every axis that at least one of the plans keeps."""
    held = {name: torch.zeros(size, dtype=torch.bool) for name, size in setup.axes.axes.items()}
    for plan in plans:
        for name, units in held.items():
            for start, stop in plan.runs.get(name, ((0, len(units)),)):
                units[start:stop] = True
    return {name: float(units.float().mean()) for name, units in held.items()}


def check_method(setup: Setup) -> None:
    """Raise `ConfigError` if an experiment needs something of clients that devices do not do yet."""
    method = setup.method
    if any(isinstance(part, SecureAggregation) for part in method.parts):
        raise ConfigError(
            "secagg needs four messages with every client of a cohort in a round, and devices answer one (Flower's own "
            "secure aggregation adds up equal shapes alone): run it in simulation, or leave out secagg"
        )
    if setup.private and not isinstance(setup.task, SampleTask):
        raise ConfigError(
            f"{method.name} gives every client a model of its own, which devices test on samples with one target each, "
            f"not on {setup.task.name}: run it in simulation"
        )
    for hook in ("send", "reply", "public_work"):
        if method.overriding(hook):
            raise ConfigError(
                f"{method.name} exchanges predictions of public samples with clients, which devices do not do yet: run "
                "it in simulation"
            )
