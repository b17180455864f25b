"""Which clients of a round train together, as one grouped network, and which one after another in one job.

That depends on the round alone: clients of one shape, those with like numbers of samples together, as many at once as
pays. It never depends on the number of workers, so the same seed gives the same bytes with any.

``cohort="auto"`` reads the table beside this file, gains.json, which was measured by the command that it names: the row
of the model most like this one says how much faster groups of some sizes are. Whether a model can be trained so at all
is found by a trial (`nestling.client.grouped.trial`). Of other clients, small ones share a job, as sending a message
and merging its answer takes as long as some steps.
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
from nestling.data.federated import FederatedData
from nestling.fleet import TRAINING
from nestling.kernels.grouped_layers import Layout
from nestling.methods.context import Setup
from nestling.methods.messages import TrainJob

_PAYS = 1.2  # times faster, below which a cohort is not worth its memory
_BUSY = 0.1  # seconds of work that a job of small clients should be, roughly, with steps of at least _STEP seconds
_STEP, _SPEED = 5e-4, 5e10  # and so many multiply-accumulates in one
_SPREAD = 8  # jobs that clients of one shape are, at least, for as many workers
_ROOM = 2**28  # bytes that a cohort may take, however small the model is
_NEARLY = 0.95  # of the best gain: smaller cohorts spread better over workers


class Row(msgspec.Struct, frozen=True):
    """One measurement: a kind of net, its description, and how much faster groups of some sizes trained."""

    kind: str
    width: float
    layers: int
    batch: int
    gains: dict[int, float]


class Table(msgspec.Struct, frozen=True):
    """All of them, and the command that measured them."""

    command: str
    rows: list[Row]


@dataclass(frozen=True)
class Group:
    """Jobs of clients that are done as one, in the order of the round; one by one where `layout` is None."""

    jobs: tuple[TrainJob, ...]
    layout: Layout | None


@cache
def table() -> Table:
    """Return the measurements."""
    return msgspec.json.decode((files("nestling.client.grouped") / "gains.json").read_bytes(), type=Table)


class Grouping:
    """Divides the jobs of a round into groups. What is found out about a shape is kept for the next round.

    Parameters
    ----------
    setup, data
        The experiment, and everybody's samples.
    cost
        Returns the costs of a plan.
    size
        The setting ``cohort``: ``"auto"``, ``"off"``, or the most clients of a group.
    device
        Where models compute.
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
            and not method.overriding("loss")
            and not method.overriding("finish")
            and setup.task.classes > 0
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
                members.sort(key=lambda job: -job.who.samples)  # those with as many steps together
            parts = _dealt(members, _parts(sizes, size, len(members)))
            groups += [Group(tuple(part), layout if len(part) > 1 else None) for part in parts]
        place = {job.who.client: at for at, job in enumerate(jobs)}
        return sorted(groups, key=lambda group: min(place[job.who.client] for job in group.jobs))

    def _bundle(self, jobs: Sequence[TrainJob], plan: Plan) -> int:
        """Return how many clients train one after another in one job: as many as keep a worker busy for a while."""
        if len(jobs) < 2 * _SPREAD:
            return 1
        training = self._setup.training
        steps = training.epochs * sum(math.ceil(job.who.samples / training.batch) for job in jobs)
        seconds = steps / len(jobs) * (_STEP + TRAINING * self._cost(plan).macs / _SPEED)
        return max(1, min(int(_BUSY / seconds) if seconds else len(jobs), len(jobs) // _SPREAD))

    def _gains(self, job: TrainJob) -> tuple[dict[int, float], Layout | None]:
        """Return the sizes of groups that may train a shape, with what each gains, and the layout in which they can."""
        model = build(self._setup, job.plan, job.who.level.ratio)
        if isinstance(self._wanted, str):
            # as many bytes as training the whole model alone takes, and some in any case
            room = max(_ROOM, self._cost(self._setup.global_plan()).memory)
            most = room / self._cost(job.plan).memory
            sizes = {size: gain for size, gain in _gains(model, self._setup.training.batch).items() if size <= most}
        else:
            sizes = {self._wanted: math.inf}
        return (sizes, can_group(model, *self._few_samples(job.who.client)).layout) if sizes else ({}, None)

    def _few_samples(self, client: int) -> tuple[Tensor, Tensor]:
        """Return what a trial reads: a few of a client's samples, some of them twice if need be."""
        data = self._data.client(client)
        samples = data.batch(torch.arange(SAMPLES, device="cpu") % len(data))
        inputs, targets = self._setup.task.prepare(samples, torch.Generator().manual_seed(0), training=True)
        return data.transform(inputs, None), targets


def _gains(model: nn.Module, batch: int) -> dict[int, float]:
    """Return the sizes that pay for a model, by the row of the table that is most like it."""
    kind, width, layers = describe_model(model)
    rows = [row for row in table().rows if row.kind == kind]

    def distance(row: Row) -> float:
        return math.hypot(*(math.log(a / b) for a, b in ((row.width, width), (row.layers, layers), (row.batch, batch))))

    gains = min(rows, key=distance).gains if rows else {}
    return {size: gain for size, gain in gains.items() if gain >= _PAYS}


def _size(sizes: Mapping[int, float], clients: int) -> int:
    """How many of `clients` clients of one shape train together: the least that gains nearly as much as the best.

    Four and more are not all put into one cohort, so that two workers have something to do.
    """
    if math.inf in sizes.values():  # a number that somebody asked for
        return min(max(sizes), clients)
    most = clients if clients < 4 else math.ceil(clients / 2)
    possible = {size: gain for size, gain in sizes.items() if size <= most}
    if not possible:
        return 1
    bar = _NEARLY * max(possible.values())
    return min(size for size, gain in possible.items() if gain >= bar)


def _parts(sizes: Mapping[int, float], size: int, clients: int) -> int:
    """How many jobs of some clients there are: an even number, as workers mostly are, where nobody asked for a size."""
    parts = math.ceil(clients / size)
    return parts if math.inf in sizes.values() or parts in (1, clients) else parts + parts % 2


def _dealt(members: Sequence[TrainJob], parts: int) -> Iterator[Sequence[TrainJob]]:
    """Cut a list into `parts` parts of nearly equal length."""
    for k in range(parts):
        yield members[k * len(members) // parts : (k + 1) * len(members) // parts]
