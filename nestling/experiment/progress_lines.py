"""`ProgressLines`: the progress of a run as lines, for log files, notebooks and scripts."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from typing import Any, TextIO

from nestling.amounts import duration
from nestling.experiment.callback import Training
from nestling.experiment.run_progress import RunProgress
from nestling.experiment.simulation import Simulation
from nestling.server.state import ServerState

_EVERY = 60.0  # seconds after which rounds that are not evaluated have a line, too


class ProgressLines(RunProgress):
    """Prints a line per evaluated round, and an estimate of the whole duration after the first client.

    Other rounds get a line if the last one was a minute ago.

    Parameters
    ----------
    stream
        Where lines are printed; by default stderr, and in a notebook its output.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        super().__init__()
        self._stream = stream
        self._estimated = False
        self._printed = time.monotonic()

    def on_start(self, simulation: Simulation, state: ServerState) -> None:
        """Print which run starts, and which tensors were loaded from a file of weights."""
        super().on_start(simulation, state)
        if simulation.started:
            self._print(simulation.started)
        resumed = f", resumed after round {state.round}" if state.round else ""
        fleet = simulation.settings.fleet
        of = f" of {fleet.per_round} clients" if fleet.per_round < fleet.clients else f", all {fleet.clients} clients"
        self._print(f"{self.name}: {self.rounds} rounds{of}{resumed}")

    def on_training(self, training: Training) -> None:
        """Print an estimate after the first client."""
        super().on_training(training)
        seconds = None if self._estimated else self.seconds_left
        if seconds is not None and self.time_left is not None:
            self._estimated = True
            self._print(f"after the first client: about {duration(seconds)} left")

    def on_round(self, record: dict[str, Any], state: ServerState) -> None:
        """Print the figures of an evaluated round."""
        super().on_round(record, state)
        if self.time_left is None or not ("evaluation" in record or time.monotonic() - self._printed > _EVERY):
            return
        done = f"round {self.round:>{len(str(self.rounds))}}/{self.rounds}"
        seconds = self.seconds_left if self.round < self.rounds else None
        left = "" if seconds is None else f", about {duration(seconds)} left"
        self._print(f"{done} · {self.figures} · {duration(self.time_left.elapsed)}{left}")

    def _print(self, line: str) -> None:
        self._printed = time.monotonic()
        with suppress(OSError):  # a closed terminal must not end a run
            print(line, file=self._stream or (sys.stdout if _in_notebook() else sys.stderr), flush=True)


def _in_notebook() -> bool:
    """Return whether this is a notebook, which shows what is written to stderr as an error."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return hasattr(shell, "kernel")
