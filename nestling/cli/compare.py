"""``nestling compare``: several experiments, several seeds, one table."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nestling.cli.screen import err, out, print_json, print_table, working
from nestling.errors import NestlingError, RunError, RunFailed

if TYPE_CHECKING:
    from nestling.settings import Experiment


def compare_command(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="PRESET|FILE.toml|DIR... [KEY=VALUE]...",
            help="What to run, or directories of runs to read; settings are changed for all that run.",
        ),
    ],
    *,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Run each with this many seeds: 0, 1, …")] = 1,
    folder: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where runs go: DIR/NAME/seed-N.")] = Path(
        "runs/compare"
    ),
    processes: Annotated[
        int, typer.Option("--processes", min=0, help="How many run at the same time; 0: one per core.")
    ] = 0,
    data_dir: Annotated[
        str | None, typer.Option("--data-dir", metavar="DIR", help="Where data files lie; or NESTLING_DATA.")
    ] = None,
    page: Annotated[bool, typer.Option("--report/--no-report", help="Also write DIR/report.html.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Run or read several experiments and compare them: mean ± deviation over seeds, bytes, MACs.

    Finished runs are read and interrupted ones are resumed, so the same command can be repeated.
    """
    with working("reading the settings"):
        from nestling import report  # noqa: PLC0415
        from nestling.experiment.lock import locked  # noqa: PLC0415

        settings = [source for source in sources if "=" in source]
        if data_dir is not None:
            settings.append(f"data.dir={data_dir!r}")
        chosen = [source for source in sources if "=" not in source]
        existing = [Path(source) for source in chosen if Path(source).is_dir()]
        new = _experiments([source for source in chosen if not Path(source).is_dir()], settings, seeds, folder)
    failed: dict[Path, NestlingError] = {}
    with locked(folder) if new else nullcontext():
        failed = _run(new, processes or os.cpu_count() or 1) if new else {}
        runs = report.find([*existing, *(place for place in new if place not in failed)]) if existing or new else []
        if page and runs:
            place = (folder if new else existing[0]) / "report.html"
            report.write(runs, place)
    rows = report.compare(runs)
    if as_json:
        print_json(rows)
    else:
        print_table(*report.terminal(rows), caption=report.NOTE)
    if page and runs:
        (err() if as_json else out()).print(f"the page: {place}", soft_wrap=True)
    if failed:
        place, problem = next(iter(failed.items()))
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        kind = RunFailed if problem.exit_code == 1 else RunError
        raise kind(f"{place} failed{more}: {problem}")


def _experiments(sources: list[str], settings: list[str], seeds: int, folder: Path) -> dict[Path, Experiment]:
    from nestling.experiment import find  # noqa: PLC0415
    from nestling.experiment.record import title  # noqa: PLC0415

    experiments: dict[Path, Experiment] = {}
    for source in sources:
        for seed in range(seeds):
            experiment = find(source).with_settings([*settings, f"seed={seed}"] if seeds > 1 else settings)
            place = folder / title(experiment) / f"seed-{experiment.seed}"
            if place in experiments:
                raise NestlingError(f"{title(experiment)!r} is given twice with seed {experiment.seed}: name each once")
            experiments[place] = experiment
    return experiments


def _run(experiments: dict[Path, Experiment], processes: int) -> dict[Path, NestlingError]:
    """Run experiments with one progress bar; return the errors of those that failed."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn  # noqa: PLC0415

    from nestling.experiment.sweep import run_sweep  # noqa: PLC0415

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f} rounds"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err(), transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task(f"{len(experiments)} runs", total=sum(one.rounds for one in experiments.values()))
        try:
            return run_sweep(experiments, processes, lambda done, of: progress.update(task, completed=done, total=of))
        except KeyboardInterrupt:
            with suppress(OSError):  # the terminal may be closed
                progress.stop()
                err().print("stopped; give the same command again to go on", soft_wrap=True)
            raise
