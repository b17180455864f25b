"""How much faster groups train: the measurements behind ``group_clients="auto"``.

``python -m bench.groups`` prints the table that `nestling.client.grouped.group_jobs` reads. Clients one by one and
together are trained in turn, on one thread; compared are the medians of *processor* seconds, which a busy machine
stretches less than those of the clock.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
import torch

from bench.figure import Figure
from bench.timing import side_by_side
from nestling.client.grouped.describe_model import describe_model
from nestling.client.grouped.group_jobs import Row, Table
from nestling.client.grouped.group_worker import GroupWorker
from nestling.client.submodels import build
from nestling.data import from_arrays
from nestling.experiment.simulation import Overrides, simulate
from nestling.fleet import parse_level
from nestling.heap import keep_freed_memory
from nestling.kernels.grouped_layers import Layout
from nestling.methods import Participant
from nestling.methods.messages import GroupJob, JobEnvelope, TrainJob
from nestling.nets import example
from nestling.settings import Experiment, FleetSettings, LocalTraining, Model

SIZES = (2, 5, 10, 20, 50)
COMMAND = "python -m bench.groups > nestling/client/grouped/gains.json"


@dataclass(frozen=True)
class Case:
    """A model at some widths, and the batch of local training."""

    name: str
    ratios: tuple[float, ...]
    batch: int = 10
    steps: int = 3
    options: dict[str, Any] = field(default_factory=dict)


_SMALL = {"depth": 2, "learn_steps": False}  # of a vision transformer
CASES = (
    Case("mlp", (1, 1 / 2, 1 / 4, 1 / 8, 1 / 16), steps=8),
    Case("mlp", (1, 1 / 4, 1 / 16), batch=50, steps=8),
    Case("cnn", (1 / 2, 1 / 4, 1 / 8, 1 / 16)),
    Case("cnn", (1 / 2, 1 / 4, 1 / 8, 1 / 16), batch=50, steps=1),
    Case("preresnet18", (1 / 2, 1 / 4, 1 / 8, 1 / 16), steps=1),
    Case("preresnet18", (1 / 4, 1 / 8, 1 / 16), batch=50, steps=1),
    Case("vit-tiny", (1, 1 / 2, 1 / 4, 1 / 8, 1 / 16), steps=1, options=_SMALL),
    Case("vit-tiny", (1 / 4, 1 / 16), batch=50, steps=1, options=_SMALL),
)


def measured(case: Case, ratio: float, sizes: Sequence[int] = SIZES, repeats: int = 5) -> Row:
    """Train groups of some sizes and as many clients one by one, in turn, through the worker that runs use."""
    clients, share = max(sizes), case.batch * case.steps
    random = torch.Generator().manual_seed(0)
    shape = example(case.name, **case.options)[0].shape[1:]
    inputs = torch.randn(clients * share, *shape, generator=random)
    targets = torch.randint(10, (len(inputs),), generator=random)
    experiment = Experiment(
        method="heterofl",
        options={"masked": False},
        group_clients=clients,
        model=Model(name=case.name, options=case.options),
        fleet=FleetSettings(clients=clients, per_round=clients, levels="a"),
        local=LocalTraining(epochs=1, batch_size=case.batch),
    )
    dataset = from_arrays(inputs, targets, test=(inputs[:2], targets[:2]))
    simulation = simulate(Overrides(experiment, dataset=dataset))
    setup, level = simulation.setup, parse_level(ratio)
    worker, plan = GroupWorker(setup, simulation.data), setup.submodel_plan(ratio)
    model = build(setup, plan, ratio)
    kind, width, layers = describe_model(model)
    state = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    jobs = tuple(
        JobEnvelope(TrainJob(Participant(client, level, share), plan, 1, 0.01), state) for client in range(clients)
    )
    layout: Layout = "channels" if kind == "convolution" else "batch"

    def alone(count: int) -> None:
        for job in jobs[:count]:
            worker(job)

    gains = {}
    for size in sizes:
        together = partial(worker, GroupJob(jobs[:size], layout))
        one, many = side_by_side(partial(alone, size), together, repeats=repeats, clock=time.process_time)
        gains[size] = round(one / many, 2)
    return Row(kind, width, layers, case.batch, gains)


def rows(cases: Sequence[Case] = CASES) -> Iterator[tuple[Case, float, Row]]:
    """Measure every case at every width."""
    for case in cases:
        for ratio in case.ratios:
            yield case, ratio, measured(case, ratio)


def groups(quick: bool = False) -> Iterator[Figure]:
    """Clients of one shape trained together against one by one, in processor seconds; the whole table takes minutes."""
    for name, ratio in (("mlp", 1 / 4), ("cnn", 1 / 16)):
        case = next(case for case in CASES if case.name == name)
        gain = measured(case, ratio, sizes=(10,), repeats=1 if quick else 5).gains[10]
        what = f"ten clients of {name} at {ratio:g} as one group"
        yield Figure(what, gain, "× one by one", "≥ 1.2", gain >= 1.2, f"all: {COMMAND}")


def main() -> None:
    """Print the table as JSON; what is being measured goes to stderr."""
    torch.set_num_threads(1)
    keep_freed_memory()
    table_rows = []
    for case, ratio, row in rows():
        print(f"{case.name} {ratio:g} batch {case.batch}: {row.gains}", file=sys.stderr, flush=True)
        table_rows.append(row)
    print(msgspec.json.format(msgspec.json.encode(Table(COMMAND, table_rows)), indent=1).decode())


if __name__ == "__main__":
    main()
