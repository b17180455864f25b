"""The progress of several runs: one bar, or lines where there is no terminal, and progress.json of their folder."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

from nestling.amounts import duration
from nestling.cli.progress import TwoLineProgress
from nestling.cli.screen import err
from nestling.experiment.directory import SUMMARY
from nestling.experiment.progress_file import ProgressWriter, read_progress
from nestling.experiment.sweep import SweepProgress

_EVERY = 300.0  # seconds between two lines while no run ends


class RunsProgress:
    """Shows how far several runs are; use it as a context manager.

    Parameters
    ----------
    folder
        The folder of the runs, which gets progress.json meanwhile.
    runs
        The directories of the runs.
    quiet
        Whether to show nothing.
    """

    def __init__(self, folder: Path, runs: Iterable[Path], *, quiet: bool = False) -> None:
        self._folder, self._writer = folder, ProgressWriter(folder)
        runs = list(runs)
        self._one_seed = len({run.name for run in runs}) == 1  # then it says nothing: experiments have one run each
        self._ended = {run for run in runs if (run / SUMMARY).exists()}
        self._bar = None if quiet or not sys.stderr.isatty() else TwoLineProgress()
        self._task = None if self._bar is None else self._bar.add(folder.name)
        self._lines = not quiet and self._bar is None
        self._printed, self._estimated = time.monotonic(), False
        self._began, self._at_first = time.monotonic(), -1.0  # time, and the share that was done then
        self._first: tuple[float, float] | None = None  # the same, after the first clients: from there the pace counts

    def __enter__(self) -> RunsProgress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Remove the bar, and progress.json."""
        if self._bar is not None:
            self._bar.stop()
        self._writer.close()

    def update(self, sweep: SweepProgress) -> None:
        """Show how far the runs are."""
        share, now = sweep.share, time.monotonic()
        left = self._seconds_left(share, now)
        count = f"{len(sweep.finished)} of {sweep.runs} runs"
        self._write(sweep, now - self._began, left)
        if self._bar is not None and self._task is not None:
            doing = " · ".join(map(self._doing, sweep.running)) or "starting"
            self._bar.update(self._task, total=1.0, completed=share, count=f"{share:.0%}, {count}", text=doing)
            self._bar.estimate(self._task, left)
        elif self._lines:
            self._print(sweep, now, f"{count} done, {share:.0%} of the work", left)

    def _seconds_left(self, share: float, now: float) -> float | None:
        """Return an estimate by the pace since the first clients were done; the start of processes does not count."""
        if self._at_first < 0:
            self._at_first = share
        if self._first is None and share > self._at_first:
            self._first = now, share
        if self._first is None or share <= self._first[1]:
            return None
        return (now - self._first[0]) * (1 - share) / (share - self._first[1])

    def _write(self, sweep: SweepProgress, seconds: float, left: float | None) -> None:
        self._writer.write(
            {
                "runs": sweep.runs,
                "finished": len(sweep.finished),
                "failed": len(sweep.failed),
                "share": round(sweep.share, 4),
                "seconds": round(seconds, 1),
                "left": None if left is None else round(left, 1),
            }
        )

    def _print(self, sweep: SweepProgress, now: float, done: str, left: float | None) -> None:
        """Print a line per run that has ended, one when the time left is known, and one every few minutes."""
        rest = "" if left is None or len(sweep.finished) == sweep.runs else f", about {duration(left)} left"
        for run in set(sweep.finished) - self._ended:
            if (run / SUMMARY).exists():  # else it was finished on another machine
                self._line(f"{self._name(run)}: {_figure(run)} · {done}{rest}")
        for run in set(sweep.failed) - self._ended:
            self._line(f"{self._name(run)} failed · {done}{rest}")
        self._ended.update(sweep.finished, sweep.failed)
        if left is not None and not self._estimated:
            self._estimated = True
            self._line(f"{sweep.runs} runs, about {duration(left)} left")
        elif now - self._printed > _EVERY:
            doing = "".join(f" · {self._doing(run)}" for run in sweep.running)
            self._line(f"{done}{rest}{doing}")

    def _line(self, text: str) -> None:
        self._printed = time.monotonic()
        err().print(text, soft_wrap=True)

    def _doing(self, run: Path) -> str:
        """Return what a run does now, with its last figure."""
        progress = read_progress(run)
        if progress is None:
            return f"{self._name(run)} starting"
        phase = "" if progress["phase"] == "training" else f" {progress['phase']}"
        return f"{self._name(run)} {progress['round']}/{progress['rounds']}{_value(progress['metric'])}{phase}"

    def _name(self, run: Path) -> str:
        if not run.is_relative_to(self._folder):
            return str(run)
        name = run.relative_to(self._folder)
        return str(name.parent if self._one_seed and len(name.parts) > 1 else name)


def _value(metric: dict[str, Any]) -> str:
    value = metric["value"]
    if value is None:
        return ""
    return f" {metric['name']} {value:.1%}" if metric["percent"] else f" {metric['name']} {value:.4g}"


def _figure(run: Path) -> str:
    """Return the final figure of a finished run."""
    from nestling.cli.run import format_metric  # noqa: PLC0415

    summary = json.loads((run / SUMMARY).read_bytes())
    return format_metric(summary["final"], summary["metrics"])
