"""Several experiments: run side by side, one process each; what is there already is not run again."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path

from nestling.errors import NestlingError, RunError, first_line
from nestling.run.changes import HARMLESS, changed_settings
from nestling.run.config import Experiment, from_file
from nestling.run.directory import CONFIG, METRICS, SUMMARY
from nestling.run.experiment import resume, run
from nestling.run.record import written

_POLL = 0.5  # seconds between looks at how far the experiments are


def run_many(
    wanted: Mapping[Path, Experiment], processes: int = 1, look: Callable[[int, int], None] = lambda done, of: None
) -> dict[Path, str]:
    """Run every experiment into its directory; go on with those that were interrupted, leave those that are done.

    Every run holds the lock of its directory: one that is being written by another process fails with that sentence.

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
        Directory → what went wrong, in one sentence: empty where all went well.
    """
    for folder, experiment in wanted.items():
        _same(folder, experiment)
    rounds = sum(experiment.rounds for experiment in wanted.values())
    failed: dict[Path, str] = {}
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
                    if problem is not None:
                        said = str(problem) if isinstance(problem, NestlingError) else f"unexpected {problem!r}"
                        failed[folder] = first_line(RunError(said))
                look(sum(_rounds(folder) for folder in wanted), rounds)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in list(pool._processes.values()):
                process.terminate()
            raise
    return failed


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


def _same(folder: Path, experiment: Experiment) -> None:
    """Raise where a directory holds a run of other settings than those that cannot change its numbers."""
    path = folder / CONFIG
    other = sorted(changed_settings(from_file(path), experiment).keys() - HARMLESS) if path.exists() else []
    if other:
        raise RunError(f"{str(folder)!r} holds a run with other settings ({', '.join(other)}): give another --out")


def _rounds(folder: Path) -> int:
    path = folder / METRICS
    return path.read_bytes().count(b"\n") if path.exists() else 0
