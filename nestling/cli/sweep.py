"""``nestling sweep``: one experiment with every combination of the values of some settings, one table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from nestling.cli.completion import complete
from nestling.cli.screen import AsJson, DataDir, Quiet, Source, next_step, print_json, print_table, working
from nestling.cli.side_by_side import WriteReport, run_and_compare
from nestling.errors import NestlingError, RunError, RunFailed, first_line

if TYPE_CHECKING:
    from nestling.experiment.grid import GridRun


def sweep_command(
    source: Source,
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE,VALUE,…",
            autocompletion=complete("settings"),
            help="Settings with their values. One value changes a setting in all runs. Lists in brackets and texts in "
            "quotes are one value each.",
        ),
    ] = None,
    *,
    seeds: Annotated[
        int, typer.Option("--seeds", metavar="N", min=1, help="Run each combination with this many seeds: 0, 1, …")
    ] = 1,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="The folder for runs, which go to DIR/SETTINGS/seed-N; by default runs/sweep/NAME.",
        ),
    ] = None,
    jobs: Annotated[
        int,
        typer.Option("--jobs", metavar="N", min=0, help="How many runs go on at the same time; 0 means one per core."),
    ] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the runs, and run nothing.")] = False,
    data_dir: DataDir = None,
    quiet: Quiet = False,
    page: WriteReport = True,
    as_json: AsJson = False,
) -> None:
    """Run an experiment with every combination of some settings, and compare the results.

    All combinations are checked before the first run starts. Finished runs are read and interrupted ones are resumed,
    so the same command can be repeated, also with more values or seeds. The table holds means ± standard deviations
    over seeds.
    """
    with working("checking the settings of all runs"):
        from nestling.experiment import find  # noqa: PLC0415
        from nestling.experiment.grid import grid_runs  # noqa: PLC0415
        from nestling.experiment.record import title  # noqa: PLC0415

        base = find(source)
        place = folder or Path("runs/sweep") / title(base)
        changes = [*(settings or []), *([] if data_dir is None else [f"data.dir={data_dir!r}"])]
        runs = grid_runs(base, changes, seeds=seeds, folder=place)
        _check(runs)
    if dry_run:
        _print_runs(runs, as_json)
        return
    run_and_compare(
        {run.folder: run.experiment for run in runs},
        [],
        place,
        processes=jobs,
        page=page,
        as_json=as_json,
        quiet=quiet,
        varied={run.folder: _varied(run) for run in runs},
    )
    if seeds == 1 and not as_json:
        next_step("the same command with --seeds 3   # how much is chance?")


def _varied(run: GridRun) -> dict[str, Any]:
    """Return the settings that tell a run from those of other combinations, as JSON-compatible values."""
    from nestling.settings import as_value  # noqa: PLC0415

    return {key: as_value(value) for key, value in run.varied.items() if key != "seed"}


def _check(runs: list[GridRun]) -> None:
    """Raise if a directory holds another run, or if a combination that has not begun cannot start."""
    from nestling.experiment.directory import CONFIG  # noqa: PLC0415
    from nestling.experiment.runner import check_start  # noqa: PLC0415
    from nestling.experiment.sweep import check_same_settings  # noqa: PLC0415

    for run in runs:
        check_same_settings(run.folder, run.experiment)
    checked: set[str] = set()
    for run in runs:
        combination = run.folder.parent.name
        if combination in checked:  # with another seed
            continue
        checked.add(combination)
        if (run.folder / CONFIG).exists():  # it has begun, so its settings were accepted
            continue
        try:
            check_start(run.experiment)
        except NestlingError as problem:
            kind = RunFailed if problem.exit_code == 1 else RunError
            raise kind(f"{run.label}: {first_line(problem)}" if run.label else first_line(problem)) from None


def _print_runs(runs: list[GridRun], as_json: bool) -> None:
    """Print all runs, with what is done of each."""
    from nestling.experiment.directory import SUMMARY  # noqa: PLC0415
    from nestling.experiment.sweep import rounds_done  # noqa: PLC0415

    rows = [
        {
            "directory": str(run.folder),
            "settings": _varied(run),
            "seed": run.experiment.seed,
            "rounds": run.experiment.rounds,
            "rounds_done": rounds_done(run.folder),
            "finished": (run.folder / SUMMARY).exists(),
        }
        for run in runs
    ]
    if as_json:
        print_json(rows)
        return
    columns: dict[str, Literal["left", "right"]] = {"run": "left", "rounds": "right", "done": "right"}
    cells = [
        [str(row["directory"]), f"{row['rounds']:,}", "all" if row["finished"] else f"{row['rounds_done']:,}"]
        for row in rows
    ]
    finished = sum(bool(row["finished"]) for row in rows)
    print_table(columns, cells, caption=f"{len(rows):,} runs, {finished:,} of them finished")
