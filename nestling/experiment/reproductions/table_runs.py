"""The runs of a table: which they are at a scale, what they cost, and running those that are not finished."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from nestling.errors import ConfigError, NestlingError
from nestling.experiment.directory import SUMMARY
from nestling.experiment.presets import PRESETS
from nestling.experiment.reproductions.definitions import (
    SCALES,
    Reproduction,
    Row,
    Scale,
    objection,
    presets_of,
)
from nestling.experiment.reproductions.expected_cost import RunCost, run_cost
from nestling.experiment.reproductions.finished_runs import (
    RESULTS,
    Finished,
    FinishedRun,
    check_settings,
    read_results,
    read_run,
    write_results,
)
from nestling.experiment.sweep import SweepProgress, run_sweep, share_done
from nestling.settings import Experiment


@dataclass(frozen=True)
class TableRun:
    """One run of a table: a preset with a seed, its directory, and what it is expected to cost."""

    preset: str
    seed: int
    experiment: Experiment
    folder: Path
    cost: RunCost


def rows_at(reproduction: Reproduction, scale: Scale, patterns: Sequence[str] = ()) -> list[Row]:
    """Return the chosen rows; raise if one that was named, or all of them, cannot be run at a scale."""
    if scale not in reproduction.scales:
        raise ConfigError(f"{reproduction.name} exists at scale {' or '.join(reproduction.scales)}, not at {scale!r}")
    rows = reproduction.select(patterns)
    refused = {row.name: reason for row in rows if (reason := objection(row, scale))}
    if refused and (patterns or len(refused) == len(rows)):
        name, reason = next(iter(refused.items()))
        raise ConfigError(f"the row {name!r} of {reproduction.name} cannot be run at scale {scale}: {reason}")
    return rows


def table_runs(
    rows: Iterable[Row], scale: Scale, *, seeds: int = 1, settings: Iterable[str] = (), folder: Path | None = None
) -> list[TableRun]:
    """Return the runs of rows at a scale, each once; several rows may need the same run.

    >>> from nestling.experiment.reproductions import find
    >>> runs = table_runs(find("digits-demo").rows, "laptop", seeds=2)
    >>> len(runs), str(runs[1].folder)
    (6, 'fedavg-large-digits/seed-1')
    """
    names = {name: None for row in rows for name in presets_of(row, scale).values()}
    changes = list(settings)
    runs = []
    for name in names:
        experiment = PRESETS[name]().with_settings(changes)
        cost = run_cost(experiment)
        for seed in range(seeds):
            seeded = experiment.with_settings([f"seed={seed}"])
            runs.append(TableRun(name, seed, seeded, (folder or Path()) / name / f"seed-{seed}", cost))
    return runs


def finished_seeds(rows: Iterable[Row], scale: Scale, folder: Path | None, others: Iterable[Path]) -> int:
    """Return how many seeds the rows of a table must have for all finished runs to be among them."""
    names = {name for row in rows for name in presets_of(row, scale).values()}
    seeds = [seed for name, seed in _listed(folder, others) if name in names]
    places = [folder / name for name in names] if folder else []
    for place in places:
        done = (path.parent.name.removeprefix("seed-") for path in place.glob(f"seed-*/{SUMMARY}"))
        seeds += [int(seed) for seed in done if seed.isdecimal()]
    return max(seeds, default=0) + 1


def finished_runs(runs: Iterable[TableRun], folder: Path | None, others: Sequence[Path], version: str) -> Finished:
    """Return the runs that are done: in their directories, in the folder's results.json, or in those of others.

    Runs of the folder's results.json are kept even if they belong to other rows, seeds or scales.
    """
    finished = _listed(folder, others)
    source = " or ".join(map(str, [*([folder] if folder else []), *others]))
    for run in runs:
        key = (run.preset, run.seed)
        earlier = finished.get(key) or (read_run(run.folder, run.preset, version) if folder else None)
        if earlier is not None:
            check_settings(earlier, run.experiment, source)
            finished[key] = earlier
    return finished


def of_table(reproduction: Reproduction, finished: Finished) -> list[FinishedRun]:
    """Return the finished runs that a table needs at any scale; files of other tables may have been read, too."""
    names = {name for row in reproduction.rows for scale in SCALES for name in presets_of(row, scale).values()}
    return [run for run in finished.values() if run.preset in names]


def run_missing(
    runs: Sequence[TableRun],
    finished: Finished,
    folder: Path,
    *,
    version: str,
    processes: int = 1,
    on_finished: Callable[[], object] = lambda: None,
    on_progress: Callable[[SweepProgress], None] = lambda progress: None,
) -> dict[Path, NestlingError]:
    """Run what is not finished; add what is done to `finished` and to results.json at once, and call `on_finished`.

    The share that `on_progress` gets is that of client MACs.

    Returns
    -------
    dict
        Directory → error, of the runs that failed.
    """
    todo = {run.folder: run for run in runs if (run.preset, run.seed) not in finished}
    total = sum(run.cost.client_macs for run in todo.values())

    def look() -> None:
        new = [
            earlier
            for run in todo.values()
            if (run.preset, run.seed) not in finished and (earlier := read_run(run.folder, run.preset, version))
        ]
        finished.update({run.key: run for run in new})
        if new:
            write_results(folder / RESULTS, finished.values())
            on_finished()

    def show(sweep: SweepProgress) -> None:
        look()
        done = sum(run.cost.client_macs * share_done(run.folder, run.experiment) for run in todo.values())
        ready = tuple(run.folder for run in runs if (run.preset, run.seed) in finished)
        on_progress(replace(sweep, runs=len(runs), finished=ready, share=done / total if total else 1.0))

    write_results(folder / RESULTS, finished.values())
    if not todo:
        return {}
    try:
        return run_sweep({path: run.experiment for path, run in todo.items()}, processes, show)
    finally:
        look()


def _listed(folder: Path | None, others: Iterable[Path]) -> Finished:
    """Return the runs of a folder's results.json, and those of other such files."""
    own = [folder / RESULTS] if folder and (folder / RESULTS).exists() else []
    finished: Finished = {}
    for path in [*own, *others]:
        for key, listed in read_results(path).items():
            finished.setdefault(key, listed)
    return finished
