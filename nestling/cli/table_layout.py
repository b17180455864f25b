"""How a table fits a terminal: headings and texts fold, the table turns on its side, or columns are left out, named.

Names and figures are never cut and never folded, whatever the width, so that they can be read and copied.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from rich.cells import cell_len
from rich.text import Text

Side = Literal["left", "right", "text"]  # names, figures, and texts, which fold between words
Cell = str | Text

_GAP = 2  # columns between two columns
_NARROWEST = 20  # columns of a folded text
_FEWEST = 3  # columns that a table has at least; with fewer, rows become records


@dataclass(frozen=True)
class Grid:
    """The cells of a table as they are printed.

    Attributes
    ----------
    headings
        The headings, with line breaks where they are folded.
    sides
        How columns are aligned.
    rows
        The cells of every row; texts have line breaks where they are folded.
    """

    headings: tuple[str, ...]
    sides: tuple[Side, ...]
    rows: tuple[tuple[Cell, ...], ...]

    @property
    def widths(self) -> tuple[int, ...]:
        """The width of every column."""
        return tuple(
            max(_width(heading), *(_width(row[place]) for row in self.rows), 0)
            for place, heading in enumerate(self.headings)
        )

    @property
    def width(self) -> int:
        """The width of the table."""
        return sum(self.widths) + _GAP * (len(self.headings) - 1)


@dataclass(frozen=True)
class Layout:
    """A table that fits, or, if none does, records; and lines that say what is not in it."""

    grid: Grid
    notes: tuple[str, ...] = ()
    records: bool = False


def lay_out(columns: Mapping[str, Side], rows: Sequence[Sequence[Cell]], width: int, least: Sequence[str]) -> Layout:
    r"""Return the layout of a table in so many columns of a terminal.

    Parameters
    ----------
    columns
        The headings, with the sides of their columns; the first column names the rows.
    rows
        The cells.
    width
        The columns of the terminal.
    least
        Headings in the order in which their columns are left out; the others follow from the right.

    >>> columns = {"experiment": "left", "global accuracy": "right", "time": "right"}
    >>> rows = [["fedavg-digits", "99.0 %", "9.9 s"], ["heterofl-digits", "97.4 %", "12.3 s"]]
    >>> lay_out(columns, rows, 80, ["time"]).grid.headings
    ('experiment', 'global accuracy', 'time')
    >>> lay_out(columns, rows, 33, ["time"]).grid.headings
    ('experiment', 'global\naccuracy', 'time')
    """
    grid = Grid(tuple(columns), tuple(columns.values()), tuple(map(tuple, rows)))
    if grid.width <= width:
        return Layout(grid)
    if (fitted := _folded(grid, width)).width <= width:
        return Layout(fitted)
    if "text" not in grid.sides and (turned := _turned(grid)).width <= width:
        return Layout(turned)
    fewer, notes = _without_equal_columns(grid)
    order = [heading for heading in least if heading in fewer.headings[1:]]
    order += [heading for heading in reversed(fewer.headings[1:]) if heading not in order]
    hidden: list[str] = []
    while (fitted := _folded(fewer, width)).width > width and len(fewer.headings) > _FEWEST:
        hidden.append(order.pop(0))
        fewer = _without(fewer, [hidden[-1]])
    if fitted.width > width:
        return Layout(grid, records=True)
    if hidden:
        notes = (*notes, f"not shown, as the terminal has {width} columns: {', '.join(hidden)}")
    return Layout(fitted, notes)


def _width(cell: Cell) -> int:
    return max((cell_len(line) for line in str(cell).split("\n")), default=0)


def _folded(grid: Grid, width: int) -> Grid:
    """Return a table whose headings are as narrow as their columns allow, and whose texts are as wide as fits."""
    cells = [max((_width(row[place]) for row in grid.rows), default=0) for place in range(len(grid.headings))]
    headings = tuple(_fold(heading, most) for heading, most in zip(grid.headings, cells, strict=True))
    widths = [
        most if side == "text" else max(most, _width(heading))
        for most, side, heading in zip(cells, grid.sides, headings, strict=True)
    ]
    texts = [place for place, side in enumerate(grid.sides) if side == "text"]
    while texts and sum(widths) + _GAP * (len(widths) - 1) > width:
        widest = max(texts, key=lambda place: widths[place])
        if widths[widest] <= _NARROWEST:
            break
        widths[widest] -= 1
    rows = tuple(
        tuple(
            _with_lines(cell, widths[place]) if place in texts and _width(cell) > widths[place] else cell
            for place, cell in enumerate(row)
        )
        for row in grid.rows
    )
    return replace(grid, headings=headings, rows=rows)


def _with_lines(cell: Cell, width: int) -> Cell:
    folded = _fold(str(cell), width)
    return Text(folded, cell.style) if isinstance(cell, Text) else folded


def _fold(text: str, width: int) -> str:
    """Return a text in lines of at most so many columns, or of its longest word if that is wider."""
    longest = max(map(len, text.split()), default=0)
    lines = (
        line
        for paragraph in text.split("\n")
        for line in textwrap.wrap(paragraph, max(width, longest, 1), break_on_hyphens=False) or [""]
    )
    return "\n".join(lines)


def _turned(grid: Grid) -> Grid:
    """Return a table with a column for every row, and a row for every column."""
    first = grid.headings[0]
    rows = tuple((heading, *(row[place] for row in grid.rows)) for place, heading in enumerate(grid.headings) if place)
    right: Side = "right"
    return Grid((first, *(str(row[0]) for row in grid.rows)), ("left", *(right,) * len(grid.rows)), rows)


def _without_equal_columns(grid: Grid) -> tuple[Grid, tuple[str, ...]]:
    """Return a table without the columns that hold the same in all rows, and a line that says what that is."""
    if len(grid.rows) < 2:
        return grid, ()
    equal = {
        heading: str(grid.rows[0][place])
        for place, heading in enumerate(grid.headings)
        if place and grid.sides[place] != "text" and len({str(row[place]) for row in grid.rows}) == 1
    }
    if not equal:
        return grid, ()
    shown = ", ".join(f"{heading} {value}" for heading, value in equal.items())
    return _without(grid, list(equal)), (f"the same in all rows: {shown}",)


def _without(grid: Grid, headings: Sequence[str]) -> Grid:
    """Return a table without some columns."""
    kept = [place for place, heading in enumerate(grid.headings) if heading not in headings]
    return Grid(
        tuple(grid.headings[place] for place in kept),
        tuple(grid.sides[place] for place in kept),
        tuple(tuple(row[place] for place in kept) for row in grid.rows),
    )
