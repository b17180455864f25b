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

from nestling.cut import Tally
from nestling.engines import LocalEngine
from nestling.experiment import checkpoint, round, worker
from nestling.experiment.evaluation import evaluate
from nestling.experiment.jobs import NormStatisticsJob, Test
from nestling.experiment.record import Record
from nestling.experiment.round import run_round
from nestling.experiment.server import Server
from nestling.experiment.setting import Setting
from nestling.experiment.worker import Worker
from nestling.heap import keep_freed_memory

PHASES = ("plan", "extract", "load", "train", "merge", "rest", "statistics", "evaluate", "write")
_PLANNING = ("sample", "level", "plan", "cost")
_MERGING = ("restart", "add", "value")


class Ours:
    """An experiment with so many workers, round by round."""

    def __init__(self, made: Setting) -> None:
        keep_freed_memory()  # as the command line does
        self._made = made
        self._engine = LocalEngine(partial(Worker, made), made.experiment.workers)
        self._server = Server.start(made, None)

    def turn(self) -> dict[str, float]:
        """Play a round and test the model; return the seconds of each."""
        start = time.perf_counter()
        self._server, _ = run_round(self._made, self._server, self._engine)
        played = time.perf_counter()
        evaluate(self._made, self._server, self._engine)
        return {"round": played - start, "evaluation": time.perf_counter() - played}


class Profiled:
    """The same with one worker, watched: every phase's own seconds, without those of phases inside it.

    `load` is what a worker does around the training: weights into a model, and back out. `rest` is what is left of a
    round. Nothing in a run has timers: they are put around its functions here.
    """

    def __init__(self, made: Setting, folder: Path | None = None) -> None:
        keep_freed_memory()
        self._made = made
        self._clock = Clock()
        self._engine = LocalEngine(self._worker)
        self._server = Server.start(made, None)
        self._folder = folder

    def turn(self) -> dict[str, float]:
        """Play a round, test the model and write a checkpoint; return the seconds of every phase."""
        self._clock.spent.clear()
        with self._watched(), TemporaryDirectory(dir=self._folder) as folder:
            self._server, told = self._clock.timed("rest", run_round)(self._made, self._server, self._engine)
            told["evaluation"], _ = self._clock.timed("evaluate", evaluate)(self._made, self._server, self._engine)
            self._clock.timed("write", _write)(Path(folder), self._server, told)
        return {phase: self._clock.spent[phase] for phase in PHASES}

    def _worker(self) -> Callable[[Any], Any]:
        work = Worker(self._made)
        kinds: dict[type, str] = {NormStatisticsJob: "statistics", Test: "evaluate"}
        return lambda job: self._clock.timed(kinds.get(type(job), "load"), work)(job)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        places: list[tuple[str, Any, str]] = [
            *(("plan", Setting, name) for name in _PLANNING),
            *(("merge", Tally, name) for name in _MERGING),
            ("merge", round, "step"),
            ("extract", Server, "slice"),
            ("train", worker, "train"),
        ]
        with ExitStack() as stack:
            for phase, owner, name in places:
                timed = self._clock.timed(phase, getattr(owner, name))
                stack.enter_context(patch.object(owner, name, timed))
            yield


def _write(folder: Path, server: Server, told: dict[str, Any]) -> None:
    record = Record(folder, 0)
    record.add(told)
    record.sync()
    checkpoint.write(folder, server)


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
