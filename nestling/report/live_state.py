"""What the runs in a folder do now, for `nestling watch`: read from their directories, and never written."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from nestling.amounts import BYTES, amount
from nestling.errors import ReportError
from nestling.experiment.directory import CONFIG, EVENTS, METRICS, SUMMARY
from nestling.experiment.progress_file import read_progress
from nestling.report.measures import Metric, leading, written
from nestling.report.page_content import plain
from nestling.report.read import Run, read

_MAX_ROWS = 60  # runs that are listed, running ones first
_MAX_EVENTS = 30
_TAIL = 2**14  # bytes of events.jsonl that are read
_ORDER = ("running", "stopped", "finished")

Stamp = tuple[tuple[int, int] | None, ...]


class _Progress(msgspec.Struct, frozen=True):
    """progress.json of a run."""

    phase: str
    round: int
    rounds: int
    share: float
    seconds: float
    updated: float
    left: float | None = None
    metric: Metric | None = None
    clients: dict[str, int] = {}
    levels: dict[str, dict[str, int]] = {}
    training: list[dict[str, int | str]] = []


class _Overall(msgspec.Struct, frozen=True):
    """progress.json of a folder of runs."""

    runs: int
    finished: int
    share: float
    seconds: float
    updated: float
    failed: int = 0
    left: float | None = None


class LiveRuns:
    """The runs of a folder; files that have not changed are not read again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[Path, tuple[Stamp, Run | str]] = {}

    def stamps(self) -> dict[Path, Stamp]:
        """Return size and time of the files that the page shows, by run directory; equal if nothing has changed."""
        return {path: _stamp(path) for path in run_directories(self._folder)}

    def now(self, stamps: dict[Path, Stamp]) -> dict[str, Any]:
        """Return what all runs do now, as values for JSON."""
        self._known = {path: known for path, known in self._known.items() if path in stamps}
        rows = [self._row(path, stamp) for path, stamp in stamps.items()]
        counts = {state: sum(row["state"] == state for row in rows) for state in _ORDER}
        rows.sort(key=lambda row: _ORDER.index(row["state"]))
        overall = _converted(read_progress(self._folder), _Overall)
        value = {
            "folder": str(self._folder),
            "counts": counts,
            "overall": None if overall is None else msgspec.to_builtins(overall),
            "runs": rows[:_MAX_ROWS],
            "events": self._events(list(stamps)),
        }
        return {key: plain(inner) for key, inner in value.items()}

    def _row(self, path: Path, stamp: Stamp) -> dict[str, Any]:
        run = self._read(path, stamp)
        progress = _converted(read_progress(path), _Progress)
        finished = (path / SUMMARY).exists()
        row: dict[str, Any] = {
            "name": self._name(path),
            "state": "running" if progress else "finished" if finished else "stopped",
            "progress": None if progress is None else msgspec.to_builtins(progress),
            "problem": run if isinstance(run, str) else "",
        }
        if isinstance(run, Run):
            row |= {
                "title": f"{run.name}, seed {run.seed}",
                "round": run.rounds_done,
                "rounds": run.rounds,
                "sent": amount(run.bytes, BYTES),
                **_results(run, progress),
            }
        return row

    def _read(self, path: Path, stamp: Stamp) -> Run | str:
        """Return the run in a directory, or why it cannot be read."""
        if path not in self._known or self._known[path][0] != stamp:
            try:
                run: Run | str = read(path) if (path / METRICS).exists() else "no round is complete"
            except ReportError as problem:
                run = str(problem)
            self._known[path] = stamp, run
        return self._known[path][1]

    def _name(self, path: Path) -> str:
        return self._folder.resolve().name if path == self._folder else str(path.relative_to(self._folder))

    def _events(self, runs: list[Path]) -> list[dict[str, Any]]:
        """Return the last events, those of runs with the newest ones first."""
        files = [(path, _entry(path / EVENTS)) for path in runs]
        newest = sorted(((entry[1], path) for path, entry in files if entry), reverse=True)
        events = [
            {"run": self._name(path), **event} for _, path in newest[:_MAX_EVENTS] for event in _tail(path / EVENTS)
        ]
        return events[:_MAX_EVENTS]


def run_directories(folder: Path) -> Iterator[Path]:
    """Yield the run directories in a folder, at any depth, also of runs that have not finished a round."""
    if any((folder / name).is_file() for name in (CONFIG, METRICS, SUMMARY)):
        yield folder
        return
    with suppress(OSError):  # removed meanwhile, or not ours to read
        with os.scandir(folder) as entries:
            children = [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
        for child in sorted(children):
            if not child.name.startswith("."):
                yield from run_directories(child)


def _results(run: Run, progress: _Progress | None) -> dict[str, Any]:
    """Return the last value of a run's first metric, for the global model and by level."""
    if run.final is None:
        return {"value": "", "levels": []}
    metrics = run.metrics or ((progress.metric,) if progress and progress.metric else ())
    kind = leading(run.final.values, metrics)
    own = metrics[0].name if metrics else (kind or "").removeprefix("global_")
    levels = [
        {"name": level, "value": written(own, values[own], metrics=metrics)}
        for level, values in run.final.submodels.items()
        if own in values
    ]
    value = written(kind, run.final.values[kind], metrics=metrics) if kind else ""
    return {"metric": own, "value": value, "levels": levels}


def _stamp(path: Path) -> Stamp:
    return tuple(_entry(path / name) for name in (CONFIG, METRICS, SUMMARY))


def _entry(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


def _tail(path: Path) -> list[dict[str, Any]]:
    """Return the last events in a file, the newest first; lines that are cut are skipped."""
    events: list[dict[str, Any]] = []
    with suppress(OSError), path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL))
        for line in reversed(file.read().splitlines()):
            with suppress(ValueError, TypeError, KeyError):
                event = json.loads(line)
                events.append({key: event[key] for key in ("round", "level", "message")})
    return events


def _converted(value: dict[str, Any] | None, kind: type[Any]) -> Any:
    """Return a progress.json by its type; None if it is not one."""
    try:
        return None if value is None else msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return None
