"""Several experiments: run side by side, one process each; what is there already is not run again."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType

from nestling.draws import own_this_process
from nestling.engines.parent import (
    NAME,
    UNGUARDED,
    end_if_script_is_unguarded,
    ending,
    ignore_terminal,
    start,
    unguarded,
    watch_parent,
)
from nestling.errors import NestlingError, RunError, RunFailed, first_line
from nestling.events import in_words, totals_of
from nestling.experiment.changes import HARMLESS, changed_settings
from nestling.experiment.directory import CONFIG, METRICS, SUMMARY
from nestling.experiment.record import written
from nestling.experiment.runner import resume, run
from nestling.settings import Experiment, from_file

_POLL = 0.5  # seconds between looks at how far the experiments are
_SAVING = 60.0  # seconds that experiments have to save their rounds when they are stopped

logger = logging.getLogger("nestling")


def run_sweep(
    wanted: Mapping[Path, Experiment], processes: int = 1, look: Callable[[int, int], None] = lambda done, of: None
) -> dict[Path, NestlingError]:
    """Run every experiment into its directory; go on with those that were interrupted, leave those that are done.

    Whatever stops this function (Ctrl-C, an error) stops the experiments too, after they have saved whole rounds. Every
    run holds the lock of its directory: one that is being written by another process fails with that sentence.

    Parameters
    ----------
    wanted
        Directory → experiment.
    processes
        How many run at the same time.
    look
        Is told now and then how many rounds are done, and of how many.

    Returns
    -------
    dict
        Directory → what went wrong: empty where all went well.
    """
    end_if_script_is_unguarded()
    for folder, experiment in wanted.items():
        _same(folder, experiment)
    rounds = sum(experiment.rounds for experiment in wanted.values())
    waiting: deque[Path] = deque(wanted)
    failed: dict[Path, NestlingError] = {}
    children: list[_Child] = []
    try:
        while len(children) < min(max(1, processes), len(wanted)):
            children.append(_Child())
        while waiting or any(child.folder for child in children):
            for child in [child for child in children if child.folder is None][: len(waiting)]:
                child.begin(waiting.popleft(), wanted)
            busy = [child for child in children if child.folder is not None]
            wait([end for child in busy for end in (child.pipe, child.process.sentinel)], timeout=_POLL)
            for child in busy:
                over = child.result()
                if over is not None:
                    place, problem = over
                    _sum_up(place)
                    if problem is not None:
                        failed[place] = problem
            look(sum(_rounds(folder) for folder in wanted), rounds)
    finally:
        _stop(children)
    return failed


class _Child:
    """A process that runs one experiment after another."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=_serve, args=(theirs,), name=f"{NAME}-run")
        start(self.process)
        theirs.close()

    def begin(self, folder: Path, wanted: Mapping[Path, Experiment]) -> None:
        """Run an experiment, in a new process where the last one is gone."""
        if not self.process.is_alive():
            self._start()
        self.folder = folder
        with suppress(OSError):  # should it be gone again, that is noticed by looking for its result
            self.pipe.send((folder, wanted[folder].to_toml()))

    def result(self) -> tuple[Path, NestlingError | None] | None:
        """Return the directory of an experiment that is over and what went wrong, if anything; None while it runs."""
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
        if self.process.exitcode == UNGUARDED:
            raise RunError(unguarded("running several experiments"))
        self.folder = None
        return folder, RunFailed(f"its process {ending(self.process.exitcode)}")


def _stop(children: list[_Child]) -> None:
    """End processes: idle ones at once, the others when they have saved whole rounds."""
    end = time.monotonic() + _SAVING
    try:
        for child in children:
            child.process.terminate()
        for child in children:
            child.process.join(max(0.0, end - time.monotonic()))
    finally:  # time is up, or somebody presses Ctrl-C again
        for child in children:
            if child.process.is_alive():
                child.process.kill()
            child.pipe.close()


def _serve(pipe: Connection) -> None:
    """Run the experiments that are sent: the whole life of a child process."""
    playing = False

    def stop(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one must not disturb the saving
        if playing:
            raise KeyboardInterrupt
        os._exit(128 + number)

    ignore_terminal("SIGINT", "SIGHUP")  # our parent hears them too, and ends us
    signal.signal(signal.SIGTERM, stop)
    watch_parent(lambda: os.kill(os.getpid(), signal.SIGTERM))
    logger.addHandler(logging.NullHandler())  # events are in the run directory, from where the parent takes them
    own_this_process()
    try:
        while True:
            folder, settings = pipe.recv()
            playing = True
            problem = _problem(folder, settings)
            playing = False
            pipe.send(problem)
    except (EOFError, OSError):  # our parent is gone
        return
    except KeyboardInterrupt:
        os._exit(128 + signal.SIGTERM)


def _problem(folder: Path, settings: str) -> tuple[str, int]:
    """Run an experiment and return what went wrong, in one sentence or none, and the exit code of that."""
    try:
        _one(folder, settings)
    except NestlingError as problem:
        return first_line(problem), problem.exit_code
    except Exception as problem:  # the other experiments go on, and the command line tells of this one
        return f"unexpected {type(problem).__name__}: {first_line(problem)}", 1
    return "", 0


def _one(folder: Path, settings: str) -> None:
    """Run or go on with one experiment, in a process of its own."""
    experiment = Experiment.from_toml(settings)
    if (folder / SUMMARY).exists():
        return
    if (folder / CONFIG).exists():
        changed = changed_settings(from_file(folder / CONFIG), experiment)
        resume(folder, settings=[f"{key}={written(new)}" for key, (_, new) in changed.items()])
    else:
        run(experiment, out=folder)


def _sum_up(folder: Path) -> None:
    """Log what went differently than planned in a run."""
    totals = totals_of(folder, logger.getEffectiveLevel())
    if totals:
        logger.warning("%s: see %s", in_words(totals), folder / "events.jsonl")


def _same(folder: Path, experiment: Experiment) -> None:
    """Raise where a directory holds a run of other settings than those that cannot change its numbers."""
    path = folder / CONFIG
    other = sorted(changed_settings(from_file(path), experiment).keys() - HARMLESS) if path.exists() else []
    if other:
        raise RunError(f"{str(folder)!r} holds a run with other settings ({', '.join(other)}): give another --out")


def _rounds(folder: Path) -> int:
    path = folder / METRICS
    return path.read_bytes().count(b"\n") if path.exists() else 0
