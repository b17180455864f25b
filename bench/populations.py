"""Populations: setting up 342,477 clients that hold text, and rounds of a few of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from bench.apart import apart, most_memory
from bench.figure import Figure
from bench.timing import side_by_side
from nestling.data.text.synthetic import USERS as POPULATION
from nestling.experiment.simulation import Overrides, simulate
from nestling.experiment.simulator import Simulator
from nestling.server.state import ServerState
from nestling.settings import Data, Experiment, FleetSettings, LocalTraining, Model


def populations(quick: bool = False) -> Iterator[Figure]:
    """Setting up 342,477 clients that hold text, and rounds of 200 of them against those of a small population."""
    figures = apart(set_up_and_tell)
    seconds, more, most = figures["seconds"], figures["more"], figures["most"]
    yield Figure("set-up of 342,477 clients", seconds, "s", "≤ 5", seconds <= 5, "made-up sentences")
    note = f"beyond what is imported before; the whole program has {most / 1024:.0f} MiB"
    yield Figure("memory of that set-up", more / 1024, "MiB", "≤ 286 (300 MB)", more * 1024 <= 300e6, note)
    drawn, repeats = (5, 1) if quick else (200, 5)
    rounds = (_rounds(clients, drawn) for clients in (1000, POPULATION))
    small, large = side_by_side(*rounds, repeats=repeats)
    ratio = large / small
    yield Figure(
        f"round of {drawn} clients of 342,477",
        ratio,
        "× of 1,000",
        "0.9 to 1.1",
        0.9 <= ratio <= 1.1,
        f"{large:.2f} s; of users who write alike",
    )


def _words(clients: int, drawn: int) -> Experiment:
    fleet = FleetSettings(clients=clients, per_round=drawn, levels="a-b-c-d-e")
    model = Model(name="transformer-nwp", options={"width": 64, "hidden": 128, "depth": 1})
    data = Data(name="words", partition="user", max_sequences=4)  # all have as many, so rounds differ in nothing else
    return Experiment(rounds=100, model=model, data=data, fleet=fleet, local=LocalTraining(epochs=1, batch_size=4))


def _rounds(clients: int, drawn: int) -> Callable[[], None]:
    """Return a function that runs the next round of an experiment with a population of so many."""
    simulation = simulate(Overrides(_words(clients, drawn)))
    simulator = Simulator(simulation)
    states = [ServerState.start(simulation.setup)]

    def run_next() -> None:
        after, _ = simulator.run_round(states.pop())
        states.append(after)

    return run_next


def set_up_and_tell() -> dict[str, float]:
    """Set up an experiment with 342,477 clients: tell the seconds that took, and the most memory that there was.

    Memory (KiB) is told as that of the whole program, and as how much more that is than before.
    """
    before = most_memory()
    start = time.perf_counter()
    simulation = simulate(Overrides(_words(POPULATION, 200)))
    simulation.fleet.level(POPULATION - 1, 1)
    simulation.fleet.sample(1)
    spent = time.perf_counter() - start
    most = most_memory()
    # the kernel's count is a little behind, so in a program that had more before, the difference may be below zero
    return {"seconds": spent, "most": most, "more": max(0, most - before)}
