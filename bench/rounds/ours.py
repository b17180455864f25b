"""Nestling's own rounds, and where their time goes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from nestling.client import worker
from nestling.client.grouped.group_worker import GroupWorker
from nestling.cut import Tally
from nestling.engines import LocalEngine
from nestling.experiment import checkpoint
from nestling.experiment.record import Record
from nestling.experiment.simulation import Simulation
from nestling.experiment.simulator import Simulator
from nestling.heap import keep_freed_memory
from nestling.methods import Method
from nestling.methods.messages import JobEnvelope, NormStatisticsJob, TestJob
from nestling.server import round
from nestling.server.cost_meter import CostMeter
from nestling.server.state import ServerState

PHASES = ("plan", "extract", "load", "train", "merge", "rest", "statistics", "evaluate", "write")
_PLANNING = ((Simulation, "participants"), (Method, "client_plan"), (CostMeter, "cost"))
_MERGING = ("restart", "add", "value")


class Ours:
    """An experiment with so many workers, round by round."""

    def __init__(self, simulation: Simulation) -> None:
        keep_freed_memory()  # as the command line does
        make = partial(GroupWorker, simulation.setup, simulation.data)
        self._simulator = Simulator(simulation, LocalEngine(make, simulation.settings.workers))
        self._state = ServerState.start(simulation.setup)

    def turn(self) -> dict[str, float]:
        """Run a round and test the model; return the seconds of each."""
        start = time.perf_counter()
        self._state, _ = self._simulator.run_round(self._state)
        played = time.perf_counter()
        self._simulator.evaluate(self._state)
        return {"round": played - start, "evaluation": time.perf_counter() - played}


class Profiled:
    """The same with one worker, watched: every phase's own seconds, without those of phases inside it.

    `load` is what a worker does around the training: weights into a model, and back out. `rest` is what is left of a
    round. Nothing in a run has timers: they are put around its functions here.
    """

    def __init__(self, simulation: Simulation, folder: Path | None = None) -> None:
        keep_freed_memory()
        self._simulation = simulation
        self._clock = Clock()
        self._simulator = Simulator(simulation, LocalEngine(self._worker))
        self._state = ServerState.start(simulation.setup)
        self._folder = folder

    def turn(self) -> dict[str, float]:
        """Run a round, test the model and write a checkpoint; return the seconds of every phase."""
        self._clock.spent.clear()
        with self._watched(), TemporaryDirectory(dir=self._folder) as folder:
            self._state, record = self._clock.timed("rest", self._simulator.run_round)(self._state)
            record["evaluation"], _ = self._clock.timed("evaluate", self._simulator.evaluate)(self._state)
            self._clock.timed("write", _write)(Path(folder), self._state, record)
        return {phase: self._clock.spent[phase] for phase in PHASES}

    def _worker(self) -> Callable[[Any], Any]:
        work = GroupWorker(self._simulation.setup, self._simulation.data)
        kinds: dict[type, str] = {NormStatisticsJob: "statistics", TestJob: "evaluate"}

        def timed(envelope: Any) -> Any:
            kind = type(envelope.job) if isinstance(envelope, JobEnvelope) else type(envelope)
            return self._clock.timed(kinds.get(kind, "load"), work)(envelope)

        return timed

    @contextmanager
    def _watched(self) -> Iterator[None]:
        places: list[tuple[str, Any, str]] = [
            *(("plan", owner, name) for owner, name in _PLANNING),
            *(("merge", Tally, name) for name in _MERGING),
            ("merge", round, "step"),
            ("extract", ServerState, "download"),
            ("train", worker, "train"),
        ]
        with ExitStack() as stack:
            for phase, owner, name in places:
                timed = self._clock.timed(phase, getattr(owner, name))
                stack.enter_context(patch.object(owner, name, timed))
            yield


def _write(folder: Path, state: ServerState, line: dict[str, Any]) -> None:
    record = Record(folder, 0)
    record.add(line)
    record.sync()
    checkpoint.write(folder, state)


class Clock:
    """Seconds by phase, each without those of phases inside it.

    >>> clock = Clock()
    >>> inner = clock.timed("inner", lambda: time.sleep(0.02))
    >>> clock.timed("outer", lambda: inner())()
    >>> clock.spent["outer"] < clock.spent["inner"]
    True
    """

    def __init__(self) -> None:
        self.spent: Counter[str] = Counter()
        self._inside: list[float] = []

    def timed(self, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that does the same, and is counted."""

        def counted(*args: Any, **named: Any) -> Any:
            self._inside.append(0.0)
            start = time.perf_counter()
            try:
                return function(*args, **named)
            finally:
                whole = time.perf_counter() - start
                self.spent[phase] += whole - self._inside.pop()  # type: ignore[assignment]  # a counter of seconds
                if self._inside:
                    self._inside[-1] += whole

        return counted
