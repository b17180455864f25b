"""Memory of a round of 100 clients, summed over its programs, against that of training alone."""

from __future__ import annotations

import gc
import multiprocessing
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from nestling.bench.apart import apart, memory, most_memory
from nestling.bench.figure import Figure
from nestling.bench.rounds.floor import bare, steps
from nestling.bench.rounds.player import WORKERS
from nestling.bench.rounds.workloads import Workload, find, prepare, read
from nestling.engines import LocalEngine
from nestling.run.round import play
from nestling.run.server import Server
from nestling.run.setting import Setting
from nestling.run.workshop import Workshop

_CIFAR = find("cifar10")
ROUND = replace(_CIFAR, about="100 clients", model="resnet18", clients=100, samples=10, augment="none")
SMALL = replace(ROUND, clients=5, options={"widths": (8, 8, 8, 8)})


def peak(quick: bool = False) -> Iterator[Figure]:
    """The most memory of a round against twice what the model, and training on every worker, must have."""
    needed, told = apart(train_and_tell, quick), apart(play_and_tell, quick)
    bound = 2 * (needed["model"] + needed["training"] * WORKERS)
    ratio = told["more"] / bound
    yield Figure(
        f"memory of a round of {(SMALL if quick else ROUND).clients} clients of resnet18",
        ratio,
        "× 2 (model + training × workers)",
        "≤ 1",
        ratio <= 1,
        f"{told['more'] / 1024:.0f} MiB in {1 + WORKERS} programs beyond {told['imports'] / 1024:.0f} of imports; the "
        f"model has {needed['model'] / 1024:.0f}, training of level a takes {needed['training'] / 1024:.0f}",
    )


def train_and_tell(quick: bool) -> dict[str, float]:
    """Tell the KiB of the model, and those that bare training of its largest sub-model takes at most."""
    _warm_up(1)
    made = prepare(SMALL if quick else ROUND)
    client = next(client for client in made.sample(1) if made.level(client, 1).ratio == 1)
    batches = list(read(made, client, 1))
    gc.collect()
    before = memory()
    steps(bare(made, 1.0), batches, made.experiment.local)
    size = sum(tensor.nbytes for tensor in made.model.state_dict().values())
    return {"model": size / 1024, "training": most_memory() - before}


def play_and_tell(quick: bool) -> dict[str, float]:
    """Play a round on worker processes; tell the KiB of all programs together at their peaks, beyond their imports."""
    imports = _warm_up(WORKERS)
    made = prepare(SMALL if quick else ROUND, WORKERS)
    engine = LocalEngine(partial(Workshop, made), WORKERS)
    play(made, Server.start(made, None), engine)
    most = most_memory() + sum(most_memory(_pid(worker)) for worker in multiprocessing.active_children())
    engine.close()
    return {"more": most - imports, "imports": imports}


def _warm_up(workers: int) -> int:
    """Play a round of a tiny model; return the KiB that programs have then, which is what they import."""
    made: Setting = prepare(_tiny(), workers)
    engine = LocalEngine(partial(Workshop, made), workers)
    play(made, Server.start(made, None), engine)
    imports = memory() + sum(memory(_pid(worker)) for worker in multiprocessing.active_children())
    engine.close()
    return imports


def _tiny() -> Workload:
    return find("mlp-e", quick=True)


def _pid(worker: Any) -> int:
    return int(worker.pid)
