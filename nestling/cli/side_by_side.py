"""Run experiments side by side with one progress bar, then print one table and write one page about them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nestling.cli.report import print_comparison
from nestling.cli.screen import err
from nestling.errors import NestlingError, RunError, RunFailed

if TYPE_CHECKING:
    from nestling.settings import Experiment

Seeds = Annotated[
    int, typer.Option("--seeds", metavar="N", min=1, help="Run each experiment with this many seeds: 0, 1, …")
]
Processes = Annotated[
    int,
    typer.Option(
        "--processes", metavar="N", min=0, help="How many experiments run at the same time; 0 means one per core."
    ),
]
WriteReport = Annotated[bool, typer.Option("--report/--no-report", help="Also write the page DIR/report.html.")]


def run_and_compare(
    new: Mapping[Path, Experiment],
    existing: Sequence[Path],
    folder: Path,
    *,
    processes: int,
    page: bool,
    as_json: bool,
    quiet: bool = False,
    varied: Mapping[Path, Mapping[str, Any]] | None = None,
    conclude: Callable[[list[dict[str, Any]]], list[str]] | None = None,
) -> None:
    """Run what is not finished, print the table of all runs, and raise if any failed.

    Parameters
    ----------
    new
        Directory → experiment, of the runs to start, to resume, or to read if they are finished.
    existing
        Directories of other runs, which are only read.
    folder
        The folder of the new runs, which is locked meanwhile.
    processes
        How many experiments run at the same time; 0 means one per core.
    page
        Whether to write a page, into `folder`, or into the first of `existing` if nothing is new.
    as_json
        Whether to print JSON in place of a table.
    quiet
        Whether to show no progress.
    varied
        Directory → settings that distinguish the run, which become the key ``settings`` of its JSON row.
    conclude
        Returns sentences to print below the table of these rows.
    """
    from nestling import report  # noqa: PLC0415
    from nestling.experiment.lock import locked  # noqa: PLC0415

    with locked(folder) if new else nullcontext():
        failed = _run(new, folder, processes=processes or os.cpu_count() or 1, quiet=quiet) if new else {}
        runs = report.find([*existing, *(path for path in new if path not in failed)])
        written = report.write(runs, (folder if new else existing[0]) / "report.html") if page and runs else None
    rows = report.compare(runs)
    if varied is not None:
        rows = [{"settings": dict(varied[Path(row["directories"][0])]), **row} for row in rows]
    print_comparison(rows, written, as_json, conclude(rows) if conclude and not failed else ())
    raise_failed(failed)


def raise_failed(failed: Mapping[Path, NestlingError]) -> None:
    """Raise the first error of runs that failed, with their number; do nothing if none failed."""
    if failed:
        path, problem = next(iter(failed.items()))
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        kind = RunFailed if problem.exit_code == 1 else RunError
        raise kind(f"{path} failed{more}: {problem}")


def _run(
    experiments: Mapping[Path, Experiment], folder: Path, *, processes: int, quiet: bool
) -> dict[Path, NestlingError]:
    """Run experiments, show their progress, and return the errors of those that failed."""
    from nestling.cli.runs_progress import RunsProgress  # noqa: PLC0415
    from nestling.experiment.sweep import run_sweep  # noqa: PLC0415

    with RunsProgress(folder, experiments, quiet=quiet) as progress:
        try:
            return run_sweep(experiments, processes, progress.update)
        except KeyboardInterrupt:
            with suppress(OSError):  # the terminal may be closed
                progress.stop()
                err().print("stopped; give the same command again to go on", soft_wrap=True)
            raise
