"""Cohorts: which clients of a round train together, as one grouped network, and which one after another in one job.

That depends on the round alone: clients of one shape, those with like numbers of samples together, as many at once as
pays. It never depends on the number of workers, so that the same seed gives the same bytes with any.

``cohort="auto"`` asks the table beside this file, cohorts.json, which was measured by the command it names: the row of
the model most like this one tells how much faster cohorts of some sizes are. Whether a model can be trained so at all
is found by trial (`nestling.client.grouped.trial`). Of other clients, small ones share a job, as sending a message and
merging its answer takes as long as some steps.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from weakref import WeakKeyDictionary

import msgspec
import torch
from torch import Tensor, nn

from nestling.client.grouped.trial import SAMPLES, verdict
from nestling.cut import Plan
from nestling.experiment.built import built, shape_of
from nestling.experiment.jobs import GroupJob, Train
from nestling.experiment.likeness import likeness
from nestling.experiment.setting import Setting
from nestling.fleet import TRAINING
from nestling.kernels.grouped_layers import Layout
from nestling.methods.parts.losses import cross_entropy

_PAYS = 1.2  # times faster, below which a cohort is not worth its memory
_BUSY = 0.1  # seconds of work that a job of small clients should be, roughly, with steps of at least _STEP seconds
_STEP, _SPEED = 5e-4, 5e10  # and so many multiply-accumulates in one
_SPREAD = 8  # jobs that clients of one shape are, at least, for as many workers
_ROOM = 2**28  # bytes that a cohort may take, however small the model is
_NEARLY = 0.95  # of the best gain: smaller cohorts spread better over workers


class Row(msgspec.Struct, frozen=True):
    """One measurement: a kind of net, its likeness, and how much faster cohorts of some sizes trained."""

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
class Cohort:
    """Clients whose training is one job, in the order of the round; one by one where `layout` is None."""

    clients: tuple[int, ...]
    layout: Layout | None

    def job(self, jobs: Sequence[Train]) -> Train | GroupJob:
        """What a worker is asked to do, from what each client would be asked alone."""
        return jobs[0] if len(jobs) == 1 else GroupJob(tuple(jobs), self.layout)


def groups(
    setting: Setting, clients: Sequence[int], plans: Mapping[int, Plan], ratios: Mapping[int, float]
) -> list[Cohort]:
    """Divide the clients of a round into cohorts, in the order of the first client of each."""
    alike: dict[Hashable, list[int]] = {}
    for client in clients:
        alike.setdefault(shape_of(setting, plans[client], ratios[client]), []).append(client)
    found = []
    for shape, members in alike.items():
        first = members[0]
        sizes, layout = _choice(setting, shape, plans[first], ratios[first], first)
        size = _size(sizes, len(members))
        if layout is None or size < 2:
            layout, size, sizes = None, _bundle(setting, members, plans[first]), {}
        if size > 1:
            members.sort(key=lambda client: -len(setting.partition.train[client]))  # those with as many steps together
        parts = _dealt(members, _parts(sizes, size, len(members)))
        found += [Cohort(tuple(part), layout if len(part) > 1 else None) for part in parts]
    place = {client: at for at, client in enumerate(clients)}
    return sorted(found, key=lambda cohort: min(place[client] for client in cohort.clients))


def _bundle(setting: Setting, clients: Sequence[int], plan: Plan) -> int:
    """How many clients of one shape train one after another in one job: as many as keep a worker busy for a while."""
    local = setting.experiment.local
    steps = local.epochs * sum(math.ceil(len(setting.partition.train[client]) / local.batch) for client in clients)
    seconds = steps / len(clients) * (_STEP + TRAINING * setting.cost(plan).macs / _SPEED)
    return max(1, min(int(_BUSY / seconds) if seconds else len(clients), len(clients) // _SPREAD))


@cache
def table() -> Table:
    """What was measured."""
    return msgspec.json.decode((files("nestling.experiment") / "cohorts.json").read_bytes(), type=Table)


_CHOICES: WeakKeyDictionary[Setting, dict[Hashable, tuple[dict[int, float], Layout | None]]] = WeakKeyDictionary()


def _choice(
    setting: Setting, shape: Hashable, plan: Plan, ratio: float, client: int
) -> tuple[dict[int, float], Layout | None]:
    """The sizes of cohorts that may train a shape, with what each gains, and the layout in which they can."""
    made = _CHOICES.setdefault(setting, {})
    if shape not in made:
        made[shape] = _found(setting, plan, ratio, client)
    return made[shape]


def _found(setting: Setting, plan: Plan, ratio: float, client: int) -> tuple[dict[int, float], Layout | None]:
    experiment, method = setting.experiment, setting.method
    if experiment.accelerate == "off" or experiment.cohort in ("off", 1):
        return {}, None
    if method.loss is not cross_entropy or method.remember is not None:
        return {}, None
    if experiment.select or experiment.device != "cpu":  # every client has rows of its own; nothing was measured
        return {}, None
    model = built(setting, plan, ratio)
    wanted = experiment.cohort
    if isinstance(wanted, str):
        most = _room(setting) / setting.cost(plan).memory
        sizes = {size: gain for size, gain in _gains(model, experiment.local.batch).items() if size <= most}
    else:
        sizes = {wanted: math.inf}
    return (sizes, verdict(model, *_samples(setting, client)).layout) if sizes else ({}, None)


def _room(setting: Setting) -> float:
    """Bytes that training a cohort may take: as many as the whole model alone, and some in any case."""
    return max(_ROOM, setting.cost(setting.whole()).memory)


def _samples(setting: Setting, client: int) -> tuple[Tensor, Tensor]:
    """What a trial reads: a few of a client's samples, some of them twice if need be."""
    data = setting.data.client(client)
    samples = data.batch(torch.arange(SAMPLES, device="cpu") % len(data))
    inputs, targets = setting.task.prepare(samples, torch.Generator().manual_seed(0), training=True)
    return data.transform(inputs, None), targets


def _gains(model: nn.Module, batch: int) -> dict[int, float]:
    """The sizes that pay for a model, by the row of the table that is most like it."""
    kind, width, layers = likeness(model)
    rows = [row for row in table().rows if row.kind == kind]

    def far(row: Row) -> float:
        return math.hypot(*(math.log(a / b) for a, b in ((row.width, width), (row.layers, layers), (row.batch, batch))))

    gains = min(rows, key=far).gains if rows else {}
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


def _dealt(members: Sequence[int], parts: int) -> Iterator[Sequence[int]]:
    """Cut a list into `parts` parts of nearly equal length."""
    for k in range(parts):
        yield members[k * len(members) // parts : (k + 1) * len(members) // parts]
