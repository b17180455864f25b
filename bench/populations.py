"""Populations: setting up 342,477 and ten million clients that hold text, and rounds of a few of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from bench.apart import apart, most_memory
from bench.figure import Figure
from bench.timing import side_by_side
from nestling.data.text.corpus import TextOptions
from nestling.data.text.synthetic import USERS as POPULATION
from nestling.data.text.synthetic import text_by
from nestling.experiment.simulation import Overrides, Simulation, simulate
from nestling.experiment.simulator import Simulator
from nestling.server.state import ServerState
from nestling.settings import Data, Experiment, FleetSettings, LocalTraining, Model

MILLIONS = 10**7
_WORDS = TextOptions("next-word", 1000, 20)


def populations(quick: bool = False) -> Iterator[Figure]:
    """Set-up and rounds of large populations against those of 1,000 clients; nothing is stored per client."""
    for clients, drawn, most_seconds in ((POPULATION, 200, 5), (MILLIONS, 1000, 10)):
        figures = apart(set_up_and_tell, clients)
        seconds, more, most = figures["seconds"], figures["more"], figures["most"]
        yield Figure(
            f"set-up of {clients:,} clients",
            seconds,
            "s",
            f"≤ {most_seconds}",
            seconds <= most_seconds,
            f"made-up sentences; levels and a round drawn: {figures['sampling'] * 1000:.0f} ms of it",
        )
        note = f"beyond what is imported before; the whole program has {most / 1024:.0f} MiB"
        yield Figure("memory of that set-up", more / 1024, "MiB", "≤ 286 (300 MB)", more * 1024 <= 300e6, note)
        count, repeats = (5, 1) if quick else (drawn, 5 if drawn == 200 else 3)
        rounds = (_rounds(population, count) for population in (1000, clients))
        small, large = side_by_side(*rounds, repeats=repeats)
        ratio = large / small
        yield Figure(
            f"round of {count:,} clients of {clients:,}",
            ratio,
            "× of 1,000",
            "0.9 to 1.1",
            0.9 <= ratio <= 1.1,
            f"{large:.2f} s; of users who write alike",
        )


def words(clients: int, drawn: int) -> Simulation:
    """Return an experiment with a population that holds made-up sentences, of whom some take part in a round."""
    fleet = FleetSettings(clients=clients, per_round=drawn, levels="a-b-c-d-e")
    model = Model(name="transformer-nwp", options={"width": 64, "hidden": 128, "depth": 1})
    data = Data(name="words", partition="user", max_sequences=4)  # all have as many, so rounds differ in nothing else
    local = LocalTraining(epochs=1, batch_size=4)
    experiment = Experiment(rounds=100, model=model, data=data, fleet=fleet, local=local)
    return simulate(Overrides(experiment, dataset=text_by(max(clients, POPULATION), _WORDS)))


def _rounds(clients: int, drawn: int) -> Callable[[], None]:
    """Return a function that runs the next round of an experiment with a population of so many."""
    simulation = words(clients, drawn)
    simulator = Simulator(simulation)
    states = [ServerState.start(simulation.setup)]

    def run_next() -> None:
        after, _ = simulator.run_round(states.pop())
        states.append(after)

    return run_next


def set_up_and_tell(clients: int, drawn: int = 1000) -> dict[str, float]:
    """Set up an experiment with so many clients: tell the seconds that took, and the most memory that there was.

    Memory (KiB) is told as that of the whole program, and as how much more that is than before. `sampling` are the
    seconds of drawing the levels of all clients and the clients of a round.
    """
    before = most_memory()
    start = time.perf_counter()
    simulation = words(clients, drawn)
    half = time.perf_counter()
    simulation.fleet.level(clients - 1, 1)
    simulation.fleet.sample(1)
    end = time.perf_counter()
    most = most_memory()
    # the kernel's count is a little behind, so in a program that had more before, the difference may be below zero
    return {"seconds": end - start, "sampling": end - half, "most": most, "more": max(0, most - before)}
