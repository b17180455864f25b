"""The table of a reproduction as text: columns for the terminal, Markdown, and LaTeX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from nestling.report.reproduction_table import Table

_LATEX = {
    "\\": r"\textbackslash{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "✗": r"$\times$",
    "✓": r"$\checkmark$",
    "–": "--",
    "γ": r"$\gamma$",
    "ρ": r"$\rho$",
    "λ": r"$\lambda$",
    "μ": r"$\mu$",
    "…": r"\dots{}",
}


def terminal(table: Table) -> tuple[dict[str, Literal["left", "right"]], list[list[str]]]:
    """Return the columns with their alignment, and the rows of cells."""
    columns: dict[str, Literal["left", "right"]] = dict.fromkeys(table.reproduction.headings, "left")
    columns |= dict.fromkeys((column.name for column in table.reproduction.columns), "right")
    columns["seeds"] = "right"
    return columns, [[*row.row.label, *(cell.pair for cell in row.cells), row.seeds_text] for row in table.rows]


def markdown(table: Table) -> str:
    """Return a table as Markdown, with its title and notes."""
    columns, rows = terminal(table)
    lines = [f"**{heading(table)}**", "", _line(list(columns))]
    lines.append(_line(["---" if side == "left" else "---:" for side in columns.values()]))
    lines += [_line(row) for row in rows]
    return "\n".join([*lines, "", *(f"- {_escaped(note)}" for note in table.notes)]) + "\n"


def latex(table: Table) -> str:
    """Return a table as LaTeX, for the package booktabs; notes are comments."""
    columns, rows = terminal(table)
    sides = "".join("l" if side == "left" else "r" for side in columns.values())
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_tex(heading(table))}}}",
        rf"\label{{tab:{table.reproduction.name}}}",
        rf"\begin{{tabular}}{{{sides}}}",
        r"\toprule",
        _tex_line(list(columns)),
        r"\midrule",
        *(_tex_line(row) for row in rows),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join([*(f"% {note}" for note in table.notes), *lines]) + "\n"


def heading(table: Table) -> str:
    """Return the title of a table, with its place in the paper and the scale."""
    reproduction = table.reproduction
    return f"{reproduction.paper}, {reproduction.where}: {reproduction.title} (scale {table.scale})"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(_escaped(cell) for cell in cells)} |"


def _escaped(text: str) -> str:
    return text.replace("|", r"\|")


def _tex(text: str) -> str:
    r"""Return a text with the signs escaped that LaTeX reads otherwise.

    >>> print(_tex("50 % ± 1"))
    50 \% $\pm$ 1
    """
    return "".join(_LATEX.get(sign, sign) for sign in text)


def _tex_line(cells: Sequence[str]) -> str:
    return " & ".join(map(_tex, cells)) + r" \\"
