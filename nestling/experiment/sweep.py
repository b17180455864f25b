"""Run several experiments at the same time, one process each; those that are done are not run again."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import FrameType

from nestling.engines.parent import check_guarded, end_if_script_is_unguarded, ending, prepare_child, start_child
from nestling.errors import NestlingError, RunError, RunFailed, first_line
from nestling.events import in_words, totals_of
from nestling.experiment.changes import HARMLESS, changed_settings
from nestling.experiment.directory import CONFIG, EVENTS, METRICS, SUMMARY
from nestling.experiment.progress_file import read_progress
from nestling.experiment.record import format_value
from nestling.experiment.runner import resume, run
from nestling.settings import Experiment, from_file

_POLL = 0.5  # seconds between two checks of the experiments' progress
_SAVING = 60.0  # seconds that experiments have to save their rounds when they are stopped

logger = logging.getLogger("nestling")


@dataclass(frozen=True)
class SweepProgress:
    """How far several runs are.

    Attributes
    ----------
    runs
        The number of all runs.
    finished, failed, running
        The directories of runs that are done, that failed, and that are going on.
    share
        The share of all rounds that is done; clients of a round that is going on count.
    """

    runs: int
    finished: tuple[Path, ...]
    failed: tuple[Path, ...]
    running: tuple[Path, ...]
    share: float


def run_sweep(
    experiments: Mapping[Path, Experiment],
    processes: int = 1,
    on_progress: Callable[[SweepProgress], None] = lambda progress: None,
) -> dict[Path, NestlingError]:
    """Run every experiment in its directory; resume those that were interrupted, skip those that are done.

    If this function is interrupted (by Ctrl-C or an error), the experiments save their complete rounds and stop. Every
    run holds the lock of its directory; a run whose directory is locked by another process fails.

    Parameters
    ----------
    experiments
        Directory → experiment.
    processes
        How many run at the same time.
    on_progress
        Called about twice a second.

    Returns
    -------
    dict
        Directory → error, of the experiments that failed.
    """
    end_if_script_is_unguarded()
    for folder, experiment in experiments.items():
        check_same_settings(folder, experiment)
    finished = [folder for folder in experiments if (folder / SUMMARY).exists()]
    waiting = deque(folder for folder in experiments if folder not in finished)
    failed: dict[Path, NestlingError] = {}
    children: list[_Child] = []
    for folder in finished:
        _log_events(folder)
    try:
        while len(children) < min(max(1, processes), len(waiting)):
            children.append(_Child())
        while waiting or any(child.folder for child in children):
            for child in [child for child in children if child.folder is None][: len(waiting)]:
                folder = waiting.popleft()
                child.begin(folder, experiments[folder])
            busy = [child for child in children if child.folder is not None]
            wait([end for child in busy for end in (child.pipe, child.process.sentinel)], timeout=_POLL)
            for child in busy:
                result = child.result()
                if result is not None:
                    folder, problem = result
                    _log_events(folder)
                    if problem is None:
                        finished.append(folder)
                    else:
                        failed[folder] = problem
            running = tuple(child.folder for child in children if child.folder is not None)
            on_progress(_progress(experiments, tuple(finished), tuple(failed), running))
    finally:
        _stop(children)
    return failed


def _progress(
    experiments: Mapping[Path, Experiment],
    finished: tuple[Path, ...],
    failed: tuple[Path, ...],
    running: tuple[Path, ...],
) -> SweepProgress:
    done = float(sum(experiments[folder].rounds for folder in finished))
    done += sum(share_done(folder, experiments[folder]) * experiments[folder].rounds for folder in running)
    total = sum(experiment.rounds for folder, experiment in experiments.items() if folder not in failed)
    return SweepProgress(len(experiments), finished, failed, running, done / total if total else 1.0)


class _Child:
    """A process that runs one experiment after another."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        self.process, self.pipe = start_child(_serve, "run")

    def begin(self, folder: Path, experiment: Experiment) -> None:
        """Run an experiment, in a new process if the last one has ended."""
        if not self.process.is_alive():
            self.process, self.pipe = start_child(_serve, "run")
        self.folder = folder
        with suppress(OSError):  # if the process has ended again, `result` notices it
            self.pipe.send((folder, experiment.to_toml()))

    def result(self) -> tuple[Path, NestlingError | None] | None:
        """Return the directory of the experiment and its error, if any; None while it is running."""
        assert self.folder is not None
        folder = self.folder
        if self.pipe.poll():
            try:
                sentence, code = self.pipe.recv()
            except (EOFError, OSError):
                self.process.join(5)
            else:
                self.folder = None
                return folder, (RunFailed if code == 1 else RunError)(sentence) if sentence else None
        if self.process.is_alive():
            return None
        check_guarded(self.process, "running several experiments")
        self.folder = None
        return folder, RunFailed(f"its process {ending(self.process.exitcode)}")


def _stop(children: list[_Child]) -> None:
    """Stop processes: idle ones at once, the others when they have saved their complete rounds."""
    end = time.monotonic() + _SAVING
    try:
        for child in children:
            child.process.terminate()
        for child in children:
            child.process.join(max(0.0, end - time.monotonic()))
    finally:  # time is up, or Ctrl-C was pressed again
        for child in children:
            if child.process.is_alive():
                child.process.kill()
            child.pipe.close()


def _serve(pipe: Connection) -> None:
    """Run the experiments that arrive through the pipe: the main function of a child process."""
    running = False

    def stop(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one must not interrupt the saving
        if running:
            raise KeyboardInterrupt
        os._exit(128 + number)

    signal.signal(signal.SIGTERM, stop)
    prepare_child("SIGINT", "SIGHUP", on_parent_end=lambda: os.kill(os.getpid(), signal.SIGTERM))
    try:
        while True:
            folder, settings = pipe.recv()
            running = True
            problem = _problem(folder, settings)
            running = False
            pipe.send(problem)
    except (EOFError, OSError):  # the parent has ended
        return
    except KeyboardInterrupt:
        os._exit(128 + signal.SIGTERM)


def _problem(folder: Path, settings: str) -> tuple[str, int]:
    """Run an experiment; return the message of its error and the exit code, or an empty message and 0."""
    try:
        _run_or_resume(folder, settings)
    except NestlingError as problem:
        return first_line(problem), problem.exit_code
    except Exception as problem:  # the other experiments go on; the command line shows the message
        return f"unexpected {type(problem).__name__}: {first_line(problem)}", 1
    return "", 0


def _run_or_resume(folder: Path, settings: str) -> None:
    experiment = Experiment.from_toml(settings)
    if (folder / SUMMARY).exists():
        return
    if (folder / CONFIG).exists():
        changed = changed_settings(from_file(folder / CONFIG), experiment)
        resume(folder, settings=[f"{key}={format_value(new)}" for key, (_, new) in changed.items()], quiet=True)
    else:
        run(experiment, out=folder, quiet=True)


def _log_events(folder: Path) -> None:
    """Log how many events of each kind a run had."""
    totals = totals_of(folder, logger.getEffectiveLevel())
    if totals:
        logger.warning("%s: see %s", in_words(totals), folder / EVENTS)


def check_same_settings(folder: Path, experiment: Experiment) -> None:
    """Raise if a directory holds a run with other settings, except for those that cannot change its numbers."""
    path = folder / CONFIG
    other = sorted(changed_settings(from_file(path), experiment).keys() - HARMLESS) if path.exists() else []
    if other:
        raise RunError(f"{str(folder)!r} holds a run with other settings ({', '.join(other)}): give another --out")


def share_done(folder: Path, experiment: Experiment) -> float:
    """Return the share of a run that is done; clients of a round that is going on count."""
    if (folder / SUMMARY).exists():
        return 1.0
    progress = read_progress(folder)
    return min(1.0, rounds_done(folder) / experiment.rounds if progress is None else progress["share"])


def rounds_done(folder: Path) -> int:
    """Return how many rounds a run has recorded; 0 if it has not begun."""
    path = folder / METRICS
    return path.read_bytes().count(b"\n") if path.exists() else 0
