"""What was measured as tables: their cells, and Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Cells = tuple[tuple[str, ...], list[list[str]], str]  # the header, rows, and what is said below


def cells(results: Mapping[str, Any]) -> Iterator[Cells]:
    """Yield the tables of a report: of every part its own, then the one of its figures.

    >>> figure = {"name": "merge", "value": 0.912, "unit": "× copy_", "bound": "≥ 0.9", "ok": True, "note": ""}
    >>> report = {"machine": {"cores": 2}, "parts": {"merges": {"figures": [figure], "tables": []}}}
    >>> next(cells(report))
    (('merges', 'measured', 'bound', 'kept', 'note'), [['merge', '0.91 × copy_', '≥ 0.9', 'yes', '']], '')
    """
    for name, part in results["parts"].items():
        for table in part["tables"]:
            rows = [[row, *map(number, values)] for row, values in table["rows"]]
            yield (table["title"], *table["columns"]), rows, table["note"]
        rows = [[row["name"], _measured(row), row["bound"], _kept(row), row["note"]] for row in part["figures"]]
        yield (name, "measured", "bound", "kept", "note"), rows, ""


def facts(results: Mapping[str, Any]) -> str:
    """Return what the figures of a report depend on, as a line.

    >>> facts({"machine": {"cores": 2, "torch": "2.13.0"}, "quick": True})
    'medians of interleaved repeats: cores 2, torch 2.13.0; quick, so they mean little'
    """
    machine = ", ".join(f"{what} {value}" for what, value in results["machine"].items())
    return f"medians of interleaved repeats: {machine}{'; quick, so they mean little' if results.get('quick') else ''}"


def markdown(results: Mapping[str, Any]) -> str:
    """Return the tables of a report as Markdown.

    >>> table = {"title": "seconds", "columns": ["floor"], "rows": [["cifar", [1.5]]], "note": "idle"}
    >>> print(markdown({"machine": {"cores": 2}, "parts": {"rounds": {"figures": [], "tables": [table]}}}))
    | seconds | floor |
    |---|---|
    | cifar | 1.50 |
    <BLANKLINE>
    idle
    <BLANKLINE>
    medians of interleaved repeats: cores 2
    """
    tables = (_table(header, rows, below) for header, rows, below in cells(results))
    return "\n\n".join([*filter(None, tables), facts(results)])


def _table(header: tuple[str, ...], rows: list[list[str]], below: str) -> str:
    if not rows:
        return ""
    lines = [header, ("---",) * len(header), *rows]
    text = "\n".join("|" + "|".join(line) + "|" if line[0] == "---" else f"| {' | '.join(line)} |" for line in lines)
    return f"{text}\n\n{below}" if below else text


def number(value: float | None) -> str:
    """Return a number with three digits, or a dash for none.

    >>> number(None), number(0.0), number(0.01234), number(1.234), number(123.4)
    ('–', '0', '0.0123', '1.23', '123')
    """
    if not value:
        return "–" if value is None else "0"
    for digits, below in ((4, 0.1), (3, 1), (2, 10), (1, 100)):
        if abs(value) < below:
            return f"{value:.{digits}f}"
    return f"{value:.0f}"


def _measured(row: Mapping[str, Any]) -> str:
    return "–" if row["value"] is None else f"{row['value']:.2f} {row['unit']}"


def _kept(row: Mapping[str, Any]) -> str:
    return ("yes" if row["ok"] else "no") if row["bound"] else ""
