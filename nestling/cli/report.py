"""``nestling report DIR…``: a table of runs, a page about them, and figures for papers."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from nestling.cli.screen import AsJson, err, out, print_json, print_table, working
from nestling.errors import NestlingError, ReportError


class _Format(StrEnum):
    """Formats of figures."""

    pdf = "pdf"
    svg = "svg"
    png = "png"


def report_command(
    directories: Annotated[
        list[Path], typer.Argument(metavar="DIR", help="Run directories, or folders that contain some at any depth.")
    ],
    *,
    page: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="The page to write; by default report.html in the first DIR."),
    ] = None,
    figures: Annotated[
        _Format | None,
        typer.Option(
            "--figures", metavar="pdf|svg|png", help="Also write every figure, for papers, to figures/ beside the page."
        ),
    ] = None,
    as_latex: Annotated[
        bool, typer.Option("--latex", help="Print the table as LaTeX, for the package booktabs.")
    ] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print the table as Markdown.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print a table that compares runs, and write a page with figures.

    Runs that differ only in their seed become one row, with means and standard deviations. The page is one file that
    loads nothing from the network. Runs that cannot be read are named on the page, and the exit code is 2. Figures
    for papers need matplotlib: pip install 'nestling[figures]'.
    """
    from nestling import report  # noqa: PLC0415
    from nestling.report.page_content import content  # noqa: PLC0415

    if as_latex + as_markdown + as_json > 1:
        raise NestlingError("--latex, --markdown and --json exclude each other: choose one of them")
    for directory in directories:
        if not directory.is_dir():
            report.find([directory])  # which raises: there is nothing to write a page into
    with working("reading the runs"):
        runs, problems = report.find_readable(directories)
        rows = report.compare(runs)
    target = directories[0] / "report.html" if page is None else page
    with working("writing the page"):
        written = report.write(runs, target, problems)
    if figures is not None and runs:
        with working("drawing the figures"):
            from nestling.report.paper_figures import write_figures  # noqa: PLC0415

            drawn = write_figures(content(runs), target.parent / "figures", figures.value)
        err().print(f"{len(drawn)} figures: {target.parent / 'figures'}", soft_wrap=True)
    if rows and (as_latex or as_markdown):
        _print_text(rows, as_latex)
        err().print(f"the page: {written}", soft_wrap=True)
    else:
        print_comparison(rows, written, as_json)
    if problems:
        more = f" (and {len(problems) - 1} more, on the page)" if len(problems) > 1 else ""
        raise ReportError(f"{problems[0]}{more}")


def _print_text(rows: list[dict[str, Any]], as_latex: bool) -> None:
    from nestling.report.table import columns, note  # noqa: PLC0415
    from nestling.report.text_table import latex_table, markdown_table  # noqa: PLC0415

    shown = columns(rows)
    sides = {column.title: column.side for column in shown}
    cells = [[column.cells[place].text for column in shown] for place in range(len(rows))]
    notes = [note(sides, cells)]
    text = latex_table(sides, cells, notes=notes) if as_latex else markdown_table(sides, cells, notes=notes)
    typer.echo(text, nl=False)


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
