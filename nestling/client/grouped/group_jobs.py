"""Which clients of a round train together, as one grouped network, and which one after another in one job.

Clients of one shape and similar numbers of samples form a group, of the size that gains most. Groups never depend on
the number of workers, so that a seed gives the same bytes with any number.

``group_clients="auto"`` reads the table beside this file, gains.json, which was measured by the command that it names:
the row of the most similar model says how much faster groups of some sizes are. A trial finds out whether a model can
be trained in groups (`nestling.client.grouped.trial`). If it cannot, small clients share a job, as sending a message
and merging its reply takes as long as some training steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import msgspec
import torch
from torch import Tensor, nn

from nestling.client.grouped.describe_model import describe_model
from nestling.client.grouped.trial import SAMPLES, can_group
from nestling.client.submodels import build, shape_of
from nestling.cut import Cost, Plan
from nestling.data.batches import local_steps
from nestling.data.federated import FederatedData
from nestling.fleet import TRAINING
from nestling.kernels.grouped_layers import Layout
from nestling.methods.context import Setup
from nestling.methods.messages import TrainJob

_MIN_GAIN = 1.2  # least speed-up for which a group is worth its memory
_BUSY = 0.1  # seconds that a job of small clients should take, roughly
_STEP_SECONDS, _MACS_PER_SECOND = 5e-4, 5e10  # the estimated time of a step: a constant, and its multiply-accumulates
_MIN_JOBS = 8  # least jobs for clients of one shape, for as many workers
_ROOM = 2**28  # bytes that a group may always take, however small the model is
_NEARLY = 0.95  # share of the best gain that is enough: smaller groups spread better over workers


class Row(msgspec.Struct, frozen=True):
    """One measurement: a kind of net, its description, and how much faster groups of some sizes trained."""

    kind: str
    width: float
    layers: int
    batch: int
    gains: dict[int, float]


class Table(msgspec.Struct, frozen=True):
    """All measurements, and the command that made them."""

    command: str
    rows: list[Row]


@dataclass(frozen=True)
class Group:
    """Jobs of clients that are done as one; one after another if `layout` is None."""

    jobs: tuple[TrainJob, ...]
    layout: Layout | None


@cache
def table() -> Table:
    """Return the measurements."""
    return msgspec.json.decode((files("nestling.client.grouped") / "gains.json").read_bytes(), type=Table)


class Grouping:
    """Divides the jobs of a round into groups. Trials are made once per shape.

    Parameters
    ----------
    setup, data
        The experiment, and the samples of all clients.
    cost
        Returns the costs of a plan.
    size
        The setting ``group_clients``: ``"auto"``, ``"off"``, or the largest number of clients in a group.
    device
        The device of the models.
    """

    def __init__(
        self, setup: Setup, data: FederatedData, cost: Callable[[Plan], Cost], size: str | int, device: str
    ) -> None:
        self._setup, self._data, self._cost = setup, data, cost
        self._wanted = size
        method = setup.method
        self._possible = (
            setup.accelerate
            and size not in ("off", 1)
            and not any(map(method.overriding, ("loss", "finish", "start", "reply")))
            and setup.task.classes > 0
            and setup.task.cross_entropy
            and isinstance(setup.example, Tensor)  # a grouped network reads one tensor
            and not setup.select_rows  # every client has rows of its own
            and device == "cpu"  # nothing was measured elsewhere
        )
        self._shapes: dict[Hashable, tuple[dict[int, float], Layout | None]] = {}

    def divide(self, jobs: Sequence[TrainJob]) -> list[Group]:
        """Return the groups, in the order of the first job of each."""
        by_shape: dict[Hashable, list[TrainJob]] = {}
        for job in jobs:
            by_shape.setdefault(shape_of(self._setup, job.plan, job.who.level.ratio), []).append(job)
        groups = []
        for shape, members in by_shape.items():
            first = members[0]
            if shape not in self._shapes:
                self._shapes[shape] = self._gains(first) if self._possible else ({}, None)
            sizes, layout = self._shapes[shape]
            size = _size(sizes, len(members))
            if layout is None or size < 2:
                layout, size, sizes = None, self._bundle(members, first.plan), {}
            if size > 1:
                members.sort(key=lambda job: -job.who.samples)  # clients with similar numbers of steps together
            parts = _split(members, _parts(sizes, size, len(members)))
            groups += [Group(tuple(part), layout if len(part) > 1 else None) for part in parts]
        order = {job.who.client: index for index, job in enumerate(jobs)}
        return sorted(groups, key=lambda group: min(order[job.who.client] for job in group.jobs))

    def _bundle(self, jobs: Sequence[TrainJob], plan: Plan) -> int:
        """Return how many clients train one after another in one job: enough for `_BUSY` seconds."""
        if len(jobs) < 2 * _MIN_JOBS:
            return 1
        training = self._setup.training
        if training.steps:
            steps = sum(local_steps(training, job.who.samples) for job in jobs)
        else:  # roughly; another formula would change who shares a job, and with it the last bits of results
            steps = training.epochs * sum(math.ceil(job.who.samples / training.batch_size) for job in jobs)
        seconds = steps / len(jobs) * (_STEP_SECONDS + TRAINING * self._cost(plan).macs / _MACS_PER_SECOND)
        return max(1, min(int(_BUSY / seconds) if seconds else len(jobs), len(jobs) // _MIN_JOBS))

    def _gains(self, job: TrainJob) -> tuple[dict[int, float], Layout | None]:
        """Return the possible sizes of groups for a shape, with their gains, and the layout in which they train."""
        model = build(self._setup, job.plan, job.who.level.ratio)
        if isinstance(self._wanted, str):
            # the bytes that one client needs to train the whole model, but at least _ROOM
            room = max(_ROOM, self._cost(self._setup.global_plan()).memory)
            most = room / self._cost(job.plan).memory
            sizes = {
                size: gain for size, gain in _gains(model, self._setup.training.batch_size).items() if size <= most
            }
        else:
            sizes = {self._wanted: math.inf}
        return (sizes, can_group(model, *self._few_samples(job.who.client)).layout) if sizes else ({}, None)

    def _few_samples(self, client: int) -> tuple[Tensor, Tensor]:
        """Return the inputs and targets of a trial: a few samples of a client, repeated if it has fewer."""
        data = self._data.client(client)
        samples = data.batch(torch.arange(SAMPLES, device="cpu") % len(data))
        inputs, targets = self._setup.task.prepare(samples, torch.Generator().manual_seed(0), training=True)
        return data.transform(inputs, None), targets


def _gains(model: nn.Module, batch: int) -> dict[int, float]:
    """Return the sizes of groups that are worth it for a model, by the row of the most similar model."""
    kind, width, layers = describe_model(model)
    rows = [row for row in table().rows if row.kind == kind]

    def distance(row: Row) -> float:
        return math.hypot(*(math.log(a / b) for a, b in ((row.width, width), (row.layers, layers), (row.batch, batch))))

    gains = min(rows, key=distance).gains if rows else {}
    return {size: gain for size, gain in gains.items() if gain >= _MIN_GAIN}


def _size(sizes: Mapping[int, float], clients: int) -> int:
    """Return the group size for `clients` clients of one shape: the smallest that gains nearly as much as the best.

    Four and more clients never form a single group, so that there is work for two workers.
    """
    if math.inf in sizes.values():  # the setting is a number
        return min(max(sizes), clients)
    most = clients if clients < 4 else math.ceil(clients / 2)
    possible = {size: gain for size, gain in sizes.items() if size <= most}
    if not possible:
        return 1
    bar = _NEARLY * max(possible.values())
    return min(size for size, gain in possible.items() if gain >= bar)


def _parts(sizes: Mapping[int, float], size: int, clients: int) -> int:
    """Return the number of groups: even, as the number of workers mostly is, unless the size is set."""
    parts = math.ceil(clients / size)
    return parts if math.inf in sizes.values() or parts in (1, clients) else parts + parts % 2


def _split(members: Sequence[TrainJob], parts: int) -> Iterator[Sequence[TrainJob]]:
    """Split a list into `parts` parts of nearly equal length."""
    for k in range(parts):
        yield members[k * len(members) // parts : (k + 1) * len(members) // parts]
