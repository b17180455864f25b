"""``nestling report DIR…``: a table of runs, and a page about them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from nestling.cli.screen import AsJson, err, out, print_json, print_table, working


def report_command(
    directories: Annotated[
        list[Path], typer.Argument(metavar="DIR", help="Run directories, or folders that contain some at any depth.")
    ],
    page: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="The page to write; by default report.html in the first DIR."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print a table that compares runs, and write a page with figures.

    Runs that differ only in their seed become one row, with means and standard deviations. The page is one file that
    loads nothing from the network. Writing it needs plotly: pip install 'nestling[report]'.
    """
    from nestling import report  # noqa: PLC0415

    with working("reading the runs"):
        runs = report.find(directories)
        rows = report.compare(runs)
    with working("writing the page"):
        written = report.write(runs, directories[0] / "report.html" if page is None else page)
    print_comparison(rows, written, as_json)


def print_comparison(
    rows: list[dict[str, Any]], page: Path | None, as_json: bool, conclusion: Sequence[str] = ()
) -> None:
    """Print the rows of `nestling.report.compare`, what they say, and the path of the page if one was written."""
    from nestling import report  # noqa: PLC0415

    if as_json:
        print_json(rows)
    elif rows:  # none if all failed
        headings, lines = report.terminal(rows)
        print_table(headings, lines, caption=report.note(headings, lines), least=report.least(headings))
        for sentence in conclusion:
            out().print(f"\n{sentence}")
        if conclusion:
            out().print()
    if page is not None:
        (err() if as_json else out()).print(f"the page: {page}", soft_wrap=True)
