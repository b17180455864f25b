"""``nestling report DIR…``: a table of runs, and a page about them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nestling.cli.screen import err, out, print_json, print_table, working


def report_command(
    directories: Annotated[
        list[Path], typer.Argument(metavar="DIR…", help="Run directories, or folders that hold some at any depth.")
    ],
    page: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Where the page goes; report.html in the first DIR unless given."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Compare runs: a table here, and a page with figures that needs no network.

    Runs that differ in their seed only become one row, with means and standard deviations. The page needs plotly:
    pip install 'nestling[report]'.
    """
    from nestling import report  # noqa: PLC0415

    with working("reading the runs"):
        runs = report.find(directories)
        rows = report.compare(runs)
    with working("writing the page"):
        written = report.write(runs, directories[0] / "report.html" if page is None else page)
    if as_json:
        print_json(rows)
    else:
        print_table(*report.terminal(rows), caption=report.NOTE)
    (err() if as_json else out()).print(f"the page: {written}", soft_wrap=True)
