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

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_PIPE_WIDTH = 10_000  # columns: piped output is for programs and files, so nothing is folded or truncated
_MIN_WIDTH = 80  # columns: with fewer, numbers would lose digits; the terminal wraps the lines instead

# Options that several commands have.
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
    columns: Mapping[str, Literal["left", "right"]], rows: Iterable[Sequence[str | Text]], caption: str = ""
) -> None:
    """Print a table; right-aligned columns hold numbers and are not wrapped, left-aligned ones fold if necessary."""
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
    for index, (header, side) in enumerate(columns.items()):
        style = "cyan" if index == 0 else ""
        table.add_column(header, justify=side, style=style, no_wrap=side == "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    console = out()
    console.print(table)
    if caption:
        console.print(caption, style="dim")


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
