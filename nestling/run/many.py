"""Several experiments: run side by side, one process each; what is there already is not run again."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from nestling.errors import NestlingError, RunError, RunFailed, first_line
from nestling.run.config import Experiment, from_file
from nestling.run.experiment import resume, run

_POLL = 0.5  # seconds between looks at how far the experiments are


def run_many(
    wanted: Mapping[Path, Experiment], processes: int = 1, look: Callable[[int, int], None] = lambda done, of: None
) -> dict[Path, NestlingError]:
    """Run every experiment into its directory; go on with those that were interrupted, leave those that are done.

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
    for folder, experiment in wanted.items():
        _same(folder, experiment)
    rounds = sum(experiment.rounds for experiment in wanted.values())
    failed: dict[Path, NestlingError] = {}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max(1, min(processes, len(wanted))), mp_context=context) as pool:
        running: dict[Future[None], Path] = {
            pool.submit(_one, folder, experiment.to_toml()): folder for folder, experiment in wanted.items()
        }
        try:
            while running:
                done, _ = wait(running, timeout=_POLL, return_when=FIRST_COMPLETED)
                for future in done:
                    folder, problem = running.pop(future), future.exception()
                    if isinstance(problem, NestlingError):
                        failed[folder] = problem
                    elif isinstance(problem, BrokenProcessPool):
                        failed[folder] = RunFailed("its process was killed, or could not be started")
                    elif problem is not None:
                        failed[folder] = RunFailed(f"unexpected {type(problem).__name__}: {first_line(problem)}")
                look(sum(_rounds(folder) for folder in wanted), rounds)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in list(pool._processes.values()):
                process.terminate()
            raise
    return failed


def _one(folder: Path, settings: str) -> None:
    """Run or go on with one experiment, in a process of its own."""
    if (folder / "summary.json").exists():
        return
    if (folder / "config.toml").exists():
        resume(folder)
    else:
        run(Experiment.from_toml(settings), out=folder)


def _same(folder: Path, experiment: Experiment) -> None:
    """Raise where a directory holds a run of other settings."""
    path = folder / "config.toml"
    if path.exists() and from_file(path) != experiment:
        raise RunError(f"{str(folder)!r} holds a run with other settings: give another --out")


def _rounds(folder: Path) -> int:
    path = folder / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0
