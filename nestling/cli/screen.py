"""Output of commands: results on stdout (tables or JSON), everything else on stderr."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from nestling.cli.completion import complete

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from nestling.cli.table_layout import Grid, Side

_PIPE_WIDTH = 10_000  # columns: piped output is for programs and files, so nothing is folded or truncated
_MIN_WIDTH = 40  # columns: with fewer, the terminal wraps the lines

# Arguments and options that several commands have.
Source = Annotated[
    str,
    typer.Argument(
        metavar="PRESET|FILE.toml",
        help="A name from 'nestling list presets', or a file of settings.",
        autocompletion=complete("presets"),
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]
DataDir = Annotated[
    str | None,
    typer.Option(metavar="DIR", help="Look for data files in this folder first, then in NESTLING_DATA and the cache."),
]


def examples(*commands: str) -> str:
    """Return the end of a command's help: examples of its use."""
    return "\n  ".join(["\b\nExamples:", *commands])  # \b keeps the line breaks


def out() -> Console:
    """Return the console for results: coloured and fitted to a terminal, plain and as wide as needed elsewhere."""
    from rich.console import Console  # noqa: PLC0415

    width = max(_MIN_WIDTH, shutil.get_terminal_size().columns) if sys.stdout.isatty() else _PIPE_WIDTH
    return Console(width=width, highlight=False, markup=False, emoji=False)


def err() -> Console:
    """Return the console for errors and progress."""
    from rich.console import Console  # noqa: PLC0415

    return Console(stderr=True, highlight=False, markup=False, emoji=False)


def print_json(value: Any) -> None:
    """Print `value` as JSON and nothing else."""
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def print_table(
    columns: Mapping[str, Side], rows: Iterable[Sequence[str | Text]], caption: str = "", least: Sequence[str] = ()
) -> None:
    """Print a table that fits the terminal (`nestling.cli.table_layout`).

    Parameters
    ----------
    columns
        The headings; ``"left"`` are names and ``"right"`` are figures, neither of which is ever cut or folded, and
        ``"text"`` are sentences, which fold. The first column names the rows.
    rows
        The cells.
    caption
        A line below the table.
    least
        Headings in the order in which columns are left out where nothing else helps; the caption's line then says so.
    """
    from nestling.cli.table_layout import lay_out  # noqa: PLC0415

    console = out()
    layout = lay_out(columns, list(rows), console.width, least)
    if layout.records:
        _print_records(console, layout.grid)
    else:
        _print_grid(console, layout.grid)
    for line in (*layout.notes, *filter(None, [caption])):
        console.print(line, style="dim")


def _print_grid(console: Console, grid: Grid) -> None:
    from rich import box  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    table = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        header_style="bold",
        border_style="dim",
    )
    deepest = max((heading.count("\n") for heading in grid.headings), default=0)
    for index, (heading, side, width) in enumerate(zip(grid.headings, grid.sides, grid.widths, strict=True)):
        lowered = "\n" * (deepest - heading.count("\n")) + heading  # next to the values
        style = "cyan" if index == 0 else ""
        align: Literal["left", "right"] = "right" if side == "right" else "left"
        table.add_column(lowered, justify=align, style=style, no_wrap=True, min_width=width, overflow="fold")
    for row in grid.rows:
        table.add_row(*row)
    console.print(table)


def _print_records(console: Console, grid: Grid) -> None:
    """Print every row as its name and, below it, its other cells with their headings."""
    from rich.text import Text  # noqa: PLC0415

    for name, *cells in grid.rows:
        console.print(Text.assemble((str(name), "cyan")), soft_wrap=True)
        pairs = zip(grid.headings[1:], cells, strict=True)
        line = Text("; ").join([Text.assemble((f"{heading} ", "dim"), cell) for heading, cell in pairs if str(cell)])
        for part in line.wrap(console, console.width - 4):
            console.print(Text("    ").append(part), soft_wrap=True)


def next_step(*commands: str) -> None:
    """Print what to do next: one or several commands."""
    from rich.text import Text  # noqa: PLC0415

    for place, command in enumerate(commands):
        out().print(Text.assemble(("next: " if place == 0 else "      ", "dim"), command), soft_wrap=True)


@contextmanager
def working(message: str) -> Iterator[None]:
    """Show a spinner with a message, on a terminal only.

    Anything that a user's own module prints meanwhile goes to stderr, so that stdout holds only the result.
    """
    spinner = err().status(message) if sys.stderr.isatty() else nullcontext()
    with redirect_stdout(sys.stderr), spinner:
        yield


def one_line(problem: BaseException) -> str:
    """Return the type and message of an error on one line, shortened if necessary.

    >>> one_line(KeyError("size"))
    "KeyError: 'size'"
    """
    return textwrap.shorten(f"{type(problem).__name__}: {problem}", 300, placeholder=" …").removesuffix(":")
