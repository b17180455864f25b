"""Memory of a round on worker processes: all of them together, beyond what the programs take before any work.

Shared memory is counted once, as the kernel's proportional set size does; this needs Linux.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bench.apart import apart
from bench.figure import Figure
from nestling.client.grouped.group_worker import GroupWorker
from nestling.data import from_arrays
from nestling.engines import LocalEngine
from nestling.experiment.simulation import Overrides, simulate
from nestling.experiment.simulator import Simulator
from nestling.nets import build, example
from nestling.server.state import ServerState
from nestling.settings import Experiment, FleetSettings, LocalTraining, Model

MODEL, BATCH, WORKERS = "resnet18", 10, 2


def workers(quick: bool = False) -> Iterator[Figure]:
    """Peak memory of rounds of 100 clients on two workers, against the model and what training takes, twice."""
    model = sum(tensor.nbytes for tensor in build(MODEL).state_dict().values()) / 2**20
    training = apart(training_peak) / 1024
    aim = 2 * (model + 2 * training)
    clients = 4 if quick else 100
    for method, levels in (("heterofl", "a-b-c-d-e"), ("fed-dropout", "b-c-d-e")):
        peak = apart(round_peak, method, levels, clients) / 1024
        note = f"beyond idle programs; the model has {model:.0f} MiB, a training of it alone {training:.0f}"
        yield Figure(f"memory of a round of {clients}, {method}", peak, "MiB", f"≤ {aim:.0f}", peak <= aim, note)


def round_peak(method: str, levels: str, clients: int) -> int:
    """Play a round of `clients` clients with two steps each; return the most memory (KiB) that took."""
    draw = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (clients * 2 * BATCH, 3, 32, 32), dtype=torch.uint8, generator=draw)
    labels = torch.arange(len(images)) % 10
    fleet = FleetSettings(clients=clients, per_round=clients, levels=levels)
    local = LocalTraining(epochs=1, batch_size=BATCH)
    experiment = Experiment(method=method, workers=WORKERS, model=Model(name=MODEL), fleet=fleet, local=local)
    idle = LocalEngine(_make_idle, WORKERS)
    list(idle.work([None] * WORKERS))
    programs = _memory()
    idle.close()
    dataset = from_arrays(images, labels, test=(images[:50], labels[:50]))
    simulation = simulate(Overrides(experiment, dataset=dataset))
    engine = LocalEngine(partial(GroupWorker, simulation.setup, simulation.data), WORKERS)
    simulator, state = Simulator(simulation, engine), ServerState.start(simulation.setup)
    most = _most(lambda: simulator.run_round(state)) - programs
    engine.close()
    return most


def training_peak() -> int:
    """Train the whole model alone; return the memory (KiB) that this and the model took."""
    programs = _memory()
    model = build(MODEL)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
    inputs, targets = example(MODEL, batch=BATCH)[0], torch.zeros(BATCH, dtype=torch.long)

    def steps() -> None:
        for _ in range(3):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()

    return _most(steps) - programs


def _make_idle() -> Callable[[Any], None]:
    return lambda job: None


def _most(action: Callable[[], object]) -> int:
    """The most memory that this process and its children have while something is done, as seen now and then."""
    over = threading.Event()
    seen = [_memory()]

    def look() -> None:
        while not over.wait(0.05):
            seen.append(_memory())

    looking = threading.Thread(target=look)
    looking.start()
    try:
        action()
    finally:
        over.set()
        looking.join()
    return max(seen)


def _memory() -> int:
    """Memory (KiB) of this process and its children."""
    total = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if os.getpid() in (int(folder.name), int((folder / "stat").read_text().rpartition(")")[2].split()[1])):
                total += int((folder / "smaps_rollup").read_text().partition("\nPss:")[2].split()[0])
        except (OSError, IndexError):  # it ended while we looked
            continue
    return total
