"""``nestling reproduce NAME``: a table or figure of a paper, ours beside the paper's."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from nestling.amounts import BYTES, amount
from nestling.cli.completion import complete
from nestling.cli.screen import AsJson, DataDir, Quiet, err, next_step, out, print_json, print_table, working
from nestling.cli.side_by_side import raise_failed

if TYPE_CHECKING:
    from nestling.errors import NestlingError
    from nestling.experiment.reproductions.finished_runs import Finished
    from nestling.experiment.reproductions.table_runs import TableRun
    from nestling.report.reproduction_table import Table


def reproduce_command(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="A name from 'nestling list reproductions'.", autocompletion=complete("reproductions")
        ),
    ],
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE",
            help="Settings to change in all runs, such as workers=2 or device=cuda.",
            autocompletion=complete("settings"),
        ),
    ] = None,
    *,
    scale: Annotated[
        Literal["laptop", "evening", "paper"],
        typer.Option(
            "--scale",
            metavar="laptop|evening|paper",
            help="The size of the experiments: minutes, an evening, or as in the paper.",
        ),
    ] = "laptop",
    rows: Annotated[
        list[str] | None,
        typer.Option("--rows", metavar="ROW", help="Only these rows: labels or patterns, such as a,a-e or 'a-e/*'."),
    ] = None,
    columns: Annotated[
        list[str] | None,
        typer.Option("--columns", metavar="COLUMN", help="Only these columns, and the runs that they need."),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option("--seeds", metavar="N", min=1, help="Run every row with this many seeds: 0, 1, … By default one."),
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", metavar="N", min=1, help="How many runs go on at the same time.")] = 1,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what it would cost, and run nothing.")] = False,
    finished_only: Annotated[
        bool,
        typer.Option(
            "--finished-only",
            help="Print the table of the runs that are finished, with all their seeds, and run nothing.",
        ),
    ] = False,
    form: Annotated[
        Literal["table", "markdown", "latex"],
        typer.Option("--format", metavar="table|markdown|latex", help="How the table is printed."),
    ] = "table",
    folder: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="The folder of its runs; by default runs/NAME.")
    ] = None,
    results: Annotated[
        list[Path] | None,
        typer.Option("--results", metavar="FILE", help="A results.json with runs that were finished elsewhere."),
    ] = None,
    save_results: Annotated[
        Path | None,
        typer.Option(
            "--save-results",
            metavar="FILE",
            help="Also write the list of the table's finished runs to this file, whenever one finishes; with --results "
            "FILE for the same file, it need not exist yet.",
        ),
    ] = None,
    data_dir: DataDir = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Reproduce a table or figure of a paper.

    Every row and seed is a run in DIR/PRESET/seed-N. Finished runs are read and interrupted ones are resumed, so the
    same command can be repeated. DIR gets table.json, table.md, table.tex, figure.svg, and results.json: the list of
    finished runs, with which another machine goes on (--results). With --finished-only and --results but without
    --out, only runs of these files count.
    """
    with working("reading the definitions"):
        from nestling import __version__  # noqa: PLC0415
        from nestling.experiment.lock import locked  # noqa: PLC0415
        from nestling.experiment.reproductions import find, table_runs  # noqa: PLC0415
        from nestling.experiment.reproductions.finished_runs import write_results  # noqa: PLC0415
        from nestling.report.reproduction_files import make_table, write_files  # noqa: PLC0415

        reproduction = find(name).with_columns(columns or [])
        if not any(setting.startswith("model.weights=") for setting in settings or []):
            reproduction = reproduction.without_weights()
        chosen = table_runs.rows_at(reproduction, scale, rows or [])
        # the file that the list is saved to is not there the first time
        others = [path for path in results or [] if path != save_results or path.exists()]
        finished_only = finished_only or reproduction.needs_no_run
        if folder is None and not (finished_only and others):
            folder = Path("runs") / name
        if seeds is None:
            seeds = table_runs.finished_seeds(chosen, scale, folder, others) if finished_only else 1
        changes = [*reproduction.settings, *(settings or []), *([] if data_dir is None else [f"data.dir={data_dir!r}"])]
        runs = table_runs.table_runs(chosen, scale, seeds=seeds, settings=changes, folder=folder)
        finished = table_runs.finished_runs(runs, folder, others, __version__)
    if dry_run:
        _print_cost(runs, finished, as_json)
        return

    def save_list() -> None:
        if save_results is not None:
            write_results(save_results, table_runs.of_table(find(name), finished))

    def save(to: Path | None) -> Table:
        notes = [f"settings changed: {' '.join(settings)}"] if settings else []
        table = make_table(reproduction, chosen, scale, seeds=seeds, finished=finished, runs=runs, notes=notes)
        if to is not None:
            write_files(to, table, seeds=seeds, finished=finished, runs=runs)
        save_list()
        return table

    failed: dict[Path, NestlingError] = {}
    if finished_only or folder is None:
        table = save(None)
    else:
        with locked(folder):
            try:
                failed = _run(runs, finished, folder, save_list, jobs=jobs, version=__version__, quiet=quiet)
            finally:
                table = save(folder)
    _print_table(table, None if finished_only else folder, form, as_json)
    raise_failed(failed)


def _run(
    runs: list[TableRun],
    finished: Finished,
    folder: Path,
    on_finished: Callable[[], object],
    *,
    jobs: int,
    version: str,
    quiet: bool,
) -> dict[Path, NestlingError]:
    """Run what is missing, show the progress, and return the errors of runs that failed."""
    from nestling.cli.runs_progress import RunsProgress  # noqa: PLC0415
    from nestling.experiment.reproductions.table_runs import run_missing  # noqa: PLC0415

    with RunsProgress(folder, [run.folder for run in runs], quiet=quiet) as progress:
        try:
            return run_missing(
                runs,
                finished,
                folder,
                version=version,
                processes=jobs,
                on_finished=on_finished,
                on_progress=progress.update,
            )
        except KeyboardInterrupt:
            with suppress(OSError):  # the terminal may be closed
                progress.stop()
                err().print("stopped; give the same command again to go on", soft_wrap=True)
            raise


def _print_cost(runs: list[TableRun], finished: Finished, as_json: bool) -> None:
    """Print what the runs that are not finished would cost."""
    rows: dict[str, dict[str, Any]] = {}
    for run in runs:
        row = rows.setdefault(
            run.preset,
            {"preset": run.preset, "data": run.experiment.data.name, "rounds": run.experiment.rounds}
            | {"finished": 0, "to_run": 0, "client_macs": 0.0, "bytes": 0.0},
        )
        if (run.preset, run.seed) in finished:
            row["finished"] += 1
        else:
            row["to_run"] += 1
            row["client_macs"] += run.cost.client_macs
            row["bytes"] += run.cost.bytes
    counted = ("finished", "to_run", "client_macs", "bytes")
    total: dict[str, Any] = {key: sum(row[key] for row in rows.values()) for key in counted}
    total["hours"] = _hours(runs, finished, total["client_macs"])
    if as_json:
        print_json({"runs": list(rows.values()), "total": total})
        return
    cells = [[row["preset"], row["data"], f"{row['rounds']:,}", *_amounts(row)] for row in rows.values()]
    cells.append(["total", "", "", *_amounts(total)])
    hours = total["hours"]
    pace = "" if hours is None else f"; at the pace of the finished runs about {hours:.1f} hours of one process"
    columns: dict[str, Literal["left", "right"]] = {"preset": "left", "data": "left"}
    columns |= dict.fromkeys(("rounds", "finished", "to run", "client MACs", "sent"), "right")
    print_table(
        columns,
        cells,
        caption=f"client MACs and bytes of the runs that are not finished, both ways, uncompressed{pace}",
    )
    if total["to_run"]:
        next_step("the same command without --dry-run")


def _amounts(row: dict[str, Any]) -> list[str]:
    return [str(row["finished"]), str(row["to_run"]), amount(row["client_macs"]), amount(row["bytes"], BYTES)]


def _hours(runs: list[TableRun], finished: Finished, macs: float) -> float | None:
    """Return how long MACs take at the pace of these runs, if any of them is finished."""
    done = [finished[run.preset, run.seed] for run in runs if (run.preset, run.seed) in finished]
    spent = sum(run.client_macs for run in done)
    return macs * sum(run.seconds for run in done) / spent / 3600 if spent else None


def _print_table(table: Table, folder: Path | None, form: str, as_json: bool) -> None:
    from nestling.report import reproduction_formats  # noqa: PLC0415
    from nestling.report.reproduction_table import as_json as plain  # noqa: PLC0415

    if as_json:
        print_json(plain(table))
    elif form == "table":
        out().print(reproduction_formats.heading(table), style="bold", soft_wrap=True)
        print_table(*reproduction_formats.terminal(table), caption="\n".join(table.notes))
    else:
        sys.stdout.write(
            reproduction_formats.markdown(table) if form == "markdown" else reproduction_formats.latex(table)
        )
    plain_text = form == "table" and not as_json
    if folder is not None:
        (out() if plain_text else err()).print(f"written to {folder}", soft_wrap=True)
