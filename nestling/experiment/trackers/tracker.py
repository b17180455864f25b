"""`Tracker`: what all trackers of experiments have in common.

A tracker gets the settings of a run, and the figures of every evaluated round. tracking.json in the run directory keeps
the identifier of the tracked run and the last round that was sent, so that a resumed run goes on in the same place and
sends no round twice: its figures are those of the first time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from nestling.errors import NestlingError, RunFailed, first_line
from nestling.events import report
from nestling.experiment.callback import Callback
from nestling.experiment.directory import TRACKING
from nestling.experiment.record import title
from nestling.experiment.simulation import Simulation
from nestling.files import write_whole
from nestling.imported import need
from nestling.server.state import ServerState


class Tracker(Callback):
    """The base class: a tracker defines `start`, `log` and `finish`.

    Attributes
    ----------
    name
        Its name on the command line, which is also that of the extra that installs its package.
    package
        The package to import.
    every_round
        Whether rounds that are not evaluated are logged, too.
    folder
        The run directory; None if nothing is written. Set before the run starts.
    """

    name: ClassVar[str]
    package: ClassVar[str]
    every_round: ClassVar[bool] = False
    folder: Path | None = None

    def __init__(self) -> None:
        self.library = need(self.package, self.name, f"tracking with {self.name} needs", NestlingError)
        self._last = 0  # round that was logged
        self._identifier: str | None = None
        self._started = self._finished = False

    def start(self, name: str, settings: Mapping[str, Any], identifier: str | None) -> str | None:
        """Start or continue a tracked run; return its identifier.

        Parameters
        ----------
        name
            The name of the experiment.
        settings
            All settings by their dotted names.
        identifier
            What this returned when the run was started, if it is resumed.
        """
        raise NotImplementedError

    def log(self, round: int, figures: Mapping[str, float]) -> None:
        """Log the figures of a round: ``train_loss``, ``evaluation/submodels/a/accuracy`` and so on."""
        raise NotImplementedError

    def finish(self, *, done: bool) -> None:
        """End the tracked run, which is done or was stopped."""
        raise NotImplementedError

    def on_start(self, simulation: Simulation, state: ServerState) -> None:
        """Start the tracked run, or continue the one that the run directory names."""
        saved = self._saved().get(self.name)
        if isinstance(saved, dict):
            self._identifier, self._last = saved.get("id"), int(saved.get("round", 0))
        settings = dict(flatten(msgspec.to_builtins(simulation.settings), "."))
        try:
            self._identifier = self.start(title(simulation.settings), settings, self._identifier)
        except NestlingError:
            raise
        except Exception as problem:  # of another library: no login, no server, …
            reason = f"{type(problem).__name__}: {first_line(problem)}"
            raise RunFailed(
                f"the tracker {self.name} could not start ({reason}): set it up, or leave it out"
            ) from problem
        self._started = True
        self._save()

    def on_round(self, record: dict[str, Any], state: ServerState) -> None:
        """Log a round, unless it was logged before the run was resumed."""
        if record["round"] <= self._last or not (self.every_round or "evaluation" in record):
            return
        figures = {
            key: float(value)
            for key, value in flatten(record, "/")
            if isinstance(value, int | float) and key != "round"
        }
        try:
            self.log(record["round"], figures)
        except Exception as problem:  # of another library: a server that is gone must not end a run
            reason = f"{type(problem).__name__}: {first_line(problem)}"
            report("tracker failed", f"{self.name} did not log round {record['round']} ({reason}); the run goes on")
            return
        self._last = record["round"]
        self._save()

    def on_end(self, result: Any) -> None:
        """Remember that the run is done."""
        self._finished = True

    def on_stop(self) -> None:
        """End the tracked run."""
        if not self._started:
            return
        self._started = False
        try:
            self.finish(done=self._finished)
        except Exception as problem:
            reason = f"{type(problem).__name__}: {first_line(problem)}"
            report("tracker failed", f"{self.name} did not end its run ({reason})")

    def _saved(self) -> dict[str, Any]:
        """Return what tracking.json holds: tracker → identifier and last round."""
        if self.folder is None or not (self.folder / TRACKING).is_file():
            return {}
        try:
            saved = json.loads((self.folder / TRACKING).read_bytes())
        except ValueError:
            saved = None
        if not isinstance(saved, dict):
            report("tracking lost", f"{self.folder / TRACKING} cannot be read: this starts a new tracked run")
            return {}
        return saved

    def _save(self) -> None:
        if self.folder is not None:
            content = {**self._saved(), self.name: {"id": self._identifier, "round": self._last}}
            write_whole(self.folder / TRACKING, (json.dumps(content) + "\n").encode())


def flatten(values: Mapping[str, Any], separator: str, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested dictionaries with the path of each.

    >>> dict(flatten({"round": 1, "evaluation": {"a": {"accuracy": 0.5}}}, "/"))
    {'round': 1, 'evaluation/a/accuracy': 0.5}
    """
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from flatten(value, separator, f"{path}{name}{separator}")
        else:
            yield f"{path}{name}", value
