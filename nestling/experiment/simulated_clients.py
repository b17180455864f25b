"""`SimulatedClients`: clients that are simulated by the workers of an engine.

Replies arrive in any order and are passed on in the order of the jobs, so the same seed gives the same numbers on every
engine. A slice is cut when the first job that needs it is handed out, and freed after the last.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from nestling.client.grouped.group_jobs import Group, Grouping
from nestling.client.transport import decode_update
from nestling.cut import Plan
from nestling.cut.extract import State
from nestling.data import Lazy
from nestling.engines import Engine, Failure
from nestling.engines.attempt import out_of_memory
from nestling.errors import NestlingError, RunFailed
from nestling.experiment.callback import Training
from nestling.experiment.simulation import Simulation
from nestling.methods.messages import (
    BranchJob,
    BranchReply,
    GroupJob,
    Job,
    JobEnvelope,
    NormStatisticsJob,
    TestClientModelJob,
    TestJob,
    TestOwnDataJob,
    TrainJob,
    Update,
)
from nestling.server.state import ServerState


class SimulatedClients:
    """All clients of a simulation: a `ClientPool`.

    Parameters
    ----------
    simulation
        The experiment.
    engine
        Where clients train.
    tick
        Called once for every client whose update arrives.
    on_training
        Called when a round starts and when clients begin or end.
    """

    def __init__(
        self,
        simulation: Simulation,
        engine: Engine,
        tick: Callable[[], None] | None = None,
        on_training: Callable[[Training], None] | None = None,
    ) -> None:
        self._setup, self._costs, self._data = simulation.setup, simulation.costs, simulation.data
        self._engine, self._tick, self._on_training = engine, tick, on_training
        settings = simulation.settings
        self._grouping = Grouping(self._setup, self._data, self._costs.cost, settings.group_clients, settings.device)

    def train(self, jobs: Sequence[TrainJob], before: ServerState) -> Iterator[Update | BranchReply]:
        """Train clients and yield their updates in the order of the groups, whichever is done first.

        With ``server.fan_in``, the slices of consecutive groups are merged where they train, and arrive as one.
        """
        groups, method, fan_in = self._grouping.divide(jobs), self._setup.method, self._setup.server.fan_in
        branches = _branches(groups, fan_in)
        slices = _Slices(self._engine, partial(before.download, self._setup), (job.plan for job in jobs))
        training = _InTraining(
            [tuple(job for group in branch for job in group.jobs) for branch in branches], self._on_training
        )

        def envelope(job: TrainJob) -> JobEnvelope:
            extra = method.send(before.context(self._setup), job.who) if method.overriding("send") else {}
            if not self._setup.clients_keep:
                return JobEnvelope(job, slices.get(job.plan), extra=extra)
            private, kept = before.clients.get(self._setup, job.who.client, job.plan, before.model)
            return JobEnvelope(job, slices.get(job.plan), private, kept, extra)

        def group_job(group: Group) -> JobEnvelope | GroupJob:
            envelopes = tuple(map(envelope, group.jobs))
            return envelopes[0] if len(envelopes) == 1 else GroupJob(envelopes, group.layout)

        # only sums of changes, those of float64 tensors, depend on the values that they change
        doubles = fan_in and any(tensor.dtype == torch.float64 for tensor in before.model.values())
        model = self._engine.share(before.model) if doubles else None

        def message(index: int) -> JobEnvelope | GroupJob | BranchJob:  # called when the job is handed out
            training.begin(index)
            parts = tuple(map(group_job, branches[index]))
            return BranchJob(parts, model) if fan_in else parts[0]

        def arrived(index: int) -> None:
            training.end(index)
            if self._tick is not None:
                for _ in range(sum(len(group.jobs) for group in branches[index])):
                    self._tick()

        for reply in replies(self._engine, Lazy(len(branches), message, keep=0), on_reply=arrived):
            merged = isinstance(reply, BranchReply)
            updates = reply.updates if merged else reply if isinstance(reply, list) else [reply]
            if merged:
                yield reply
            for update in updates:
                if update.message is not None:
                    yield decode_update(self._setup, update, before.download(self._setup, update.plan))
                elif not merged:
                    yield update
                slices.done(update.plan, len(update.who))

    def ask(self, jobs: Sequence[Job], download: Callable[[Plan], State], state: ServerState) -> list[Any]:
        """Return the results of all jobs, in order; the largest are done first."""
        slices = _Slices(self._engine, download, (job.plan for job in jobs))

        def envelope(index: int) -> JobEnvelope:
            job = jobs[index]
            if not isinstance(job, TestClientModelJob):
                return JobEnvelope(job, slices.get(job.plan))
            private, _ = state.clients.get(self._setup, job.who.client, job.plan, state.model)
            return JobEnvelope(job, slices.get(job.plan), private)

        sizes = [self._costs.cost(job.plan).macs * self._samples(job) for job in jobs]
        return list(replies(self._engine, Lazy(len(jobs), envelope, keep=0), sizes))

    def _samples(self, job: Job) -> float:
        """Return the number of samples that a job runs through a model."""
        match job:
            case NormStatisticsJob():
                return float(sum(self._data.size(client) for client in job.clients))
            case TestJob():
                return job.stop - job.start
            case TestOwnDataJob():
                return self._data.size(job.client)
        return len(self._data.test)


def _branches(groups: Sequence[Group], fan_in: int) -> list[list[Group]]:
    """Return consecutive groups of at most `fan_in` clients in all, or a single larger one; each alone for 0."""
    branches: list[list[Group]] = []
    clients = 0
    for group in groups:
        clients += len(group.jobs)
        if not branches or clients > fan_in:
            branches.append([])
            clients = len(group.jobs)
        branches[-1].append(group)
    return branches


class _InTraining:
    """Calls a function with the clients that train and those that are done, whenever they change."""

    def __init__(self, groups: Sequence[tuple[TrainJob, ...]], on_training: Callable[[Training], None] | None) -> None:
        self._groups, self._on_training = groups, on_training
        self._jobs = tuple(job for jobs in groups for job in jobs)
        self._now: set[int] = set()
        self._done: tuple[TrainJob, ...] = ()
        self._changed()

    def begin(self, index: int) -> None:
        """Count a group as training; if its worker is lost, it begins again."""
        if index not in self._now:
            self._now.add(index)
            self._changed()

    def end(self, index: int) -> None:
        """Count a group as done."""
        self._now.discard(index)
        self._done += self._groups[index]
        self._changed()

    def _changed(self) -> None:
        if self._on_training is None:
            return
        now = tuple(job for index in sorted(self._now) for job in self._groups[index])
        self._on_training(Training(self._jobs, self._done, now))


class _Slices:
    """Sub-models that are shared with the workers of an engine, each once for all jobs that need it.

    Parameters
    ----------
    engine
        Where the jobs are run.
    cut
        Cuts the sub-model of a plan.
    plans
        The plans of all jobs, one for each job.
    """

    def __init__(self, engine: Engine, cut: Callable[[Plan], State], plans: Iterable[Plan]) -> None:
        self._engine, self._cut = engine, cut
        self._left = Counter(plans)
        self._shared: dict[Plan, Any] = {}

    def get(self, plan: Plan) -> Any:
        """Return the reference to the sub-model that a job carries."""
        if plan not in self._shared:
            self._shared[plan] = self._engine.share(self._cut(plan))
        return self._shared[plan]

    def done(self, plan: Plan, clients: int = 1) -> None:
        """Record that `clients` more with this plan are done; free the sub-model after the last."""
        self._left[plan] -= clients
        if self._left[plan] <= 0:
            self._shared.pop(plan, None)


def replies(
    engine: Engine,
    jobs: Sequence[Any],
    sizes: Sequence[float] | None = None,
    on_reply: Callable[[int], None] = lambda index: None,
) -> Iterator[Any]:
    """Yield the results of jobs in the order of the jobs, whichever is done first.

    If a worker is lost, another one runs its job. An error stops the run, because it would occur again. `on_reply` is
    called with the index of a job when its reply arrives.

    >>> from nestling.engines import LocalEngine
    >>> list(replies(LocalEngine(lambda: abs), [-1, 2]))
    [1, 2]
    """
    waiting: dict[int, Any] = {}
    next_index = 0
    for result in engine.work(jobs, sizes):
        if isinstance(result, Failure):
            raise _error(result)
        on_reply(result.index)
        waiting[result.index] = result.value
        while next_index in waiting:
            yield waiting.pop(next_index)
            next_index += 1


def _error(failure: Failure) -> NestlingError:
    """Return the error of a job, with a message that says what to do."""
    if isinstance(failure.error, NestlingError):
        return failure.error
    reason = textwrap.shorten(failure.reason, 300, placeholder=" …")
    problem = RunFailed(
        f"there is not enough memory ({reason}): use fewer workers, a smaller local.batch_size, or group_clients=off"
        if out_of_memory(failure.error)
        else f"a client's work failed: {reason}"
    )
    problem.__cause__ = failure.error
    return problem
