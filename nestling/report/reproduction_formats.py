"""The table of a reproduction as text: columns for the terminal, Markdown, and LaTeX."""

from __future__ import annotations

from typing import Literal

from nestling.report.reproduction_table import Table
from nestling.report.text_table import latex_table, markdown_table


def terminal(table: Table) -> tuple[dict[str, Literal["left", "right"]], list[list[str]]]:
    """Return the columns with their alignment, and the rows of cells."""
    columns: dict[str, Literal["left", "right"]] = dict.fromkeys(table.reproduction.headings, "left")
    columns |= dict.fromkeys((column.name for column in table.reproduction.columns), "right")
    columns["seeds"] = "right"
    return columns, [[*row.row.label, *(cell.pair for cell in row.cells), row.seeds_text] for row in table.rows]


def markdown(table: Table) -> str:
    """Return a table as Markdown, with its title and notes."""
    return markdown_table(*terminal(table), heading(table), table.notes)


def latex(table: Table) -> str:
    """Return a table as LaTeX, for the package booktabs; notes are comments."""
    return latex_table(*terminal(table), heading(table), table.reproduction.name, table.notes)


def heading(table: Table) -> str:
    """Return the title of a table, with its place in the paper and the scale."""
    reproduction = table.reproduction
    return f"{reproduction.paper}, {reproduction.where}: {reproduction.title} (scale {table.scale})"
