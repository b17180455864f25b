"""Tables as text for papers and notes: Markdown, and LaTeX for the package booktabs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

Sides = Mapping[str, Literal["left", "right"]]  # column → alignment

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


def markdown_table(columns: Sides, rows: Sequence[Sequence[str]], title: str = "", notes: Sequence[str] = ()) -> str:
    r"""Return a table as Markdown.

    >>> print(markdown_table({"method": "left", "accuracy": "right"}, [["a|b", "97.5 %"]]), end="")
    | method | accuracy |
    | --- | ---: |
    | a\|b | 97.5 % |
    """
    lines = [f"**{title}**", ""] if title else []
    lines += [_line(list(columns)), _line(["---" if side == "left" else "---:" for side in columns.values()])]
    lines += [_line(row) for row in rows]
    return "\n".join([*lines, *([""] if notes else []), *(f"- {_escaped(note)}" for note in notes)]) + "\n"


def latex_table(
    columns: Sides, rows: Sequence[Sequence[str]], title: str = "", label: str = "", notes: Sequence[str] = ()
) -> str:
    """Return a table as LaTeX; notes are comments."""
    sides = "".join("l" if side == "left" else "r" for side in columns.values())
    lines = [
        r"\begin{table}",
        r"\centering",
        *([rf"\caption{{{tex(title)}}}"] if title else []),
        *([rf"\label{{tab:{label}}}"] if label else []),
        rf"\begin{{tabular}}{{{sides}}}",
        r"\toprule",
        _tex_line(list(columns)),
        r"\midrule",
        *(_tex_line(row) for row in rows),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join([*(f"% {note}" for note in notes), *lines]) + "\n"


def tex(text: str) -> str:
    r"""Return a text with the signs escaped that LaTeX reads otherwise.

    >>> print(tex("50 % ± 1"))
    50 \% $\pm$ 1
    """
    return "".join(_LATEX.get(sign, sign) for sign in text)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(_escaped(cell) for cell in cells)} |"


def _escaped(text: str) -> str:
    return text.replace("|", r"\|")


def _tex_line(cells: Sequence[str]) -> str:
    return " & ".join(map(tex, cells)) + r" \\"
