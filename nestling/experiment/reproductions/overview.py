"""What ``nestling list reproductions`` shows: every table and figure, what it needs, and which rows can be run."""

from __future__ import annotations

from typing import Any

from nestling.amounts import amount
from nestling.experiment.presets import PRESETS
from nestling.experiment.reproductions.definitions import (
    NoExperiment,
    Reproduction,
    Row,
    Scale,
    no_experiments,
    objection,
    presets_of,
    reproductions,
)
from nestling.experiment.reproductions.expected_cost import run_cost


def overview() -> list[dict[str, Any]]:
    """Return a row for every reproduction, as JSON-compatible values.

    Client MACs and hours are those of one seed of all rows that exist at the scale; runs that rows share count once.
    Hours are rough: they are those of one core, without tests of the model. Tables and figures that no run can repeat
    come last, without rows; `needs` says why.
    """
    return [*map(_entry, reproductions()), *map(_other, no_experiments())]


def _entry(reproduction: Reproduction) -> dict[str, Any]:
    scales = {scale: _at(reproduction, scale) for scale in reproduction.scales}
    presets = [PRESETS[name]() for row in reproduction.rows for name in _any(row, reproduction)]
    return {
        "name": reproduction.name,
        "paper": reproduction.paper,
        "where": reproduction.where,
        "title": reproduction.title,
        "data": sorted({experiment.data.name for experiment in presets}),
        "needs": reproduction.needs or None,
        "scales": scales,
        "columns": [column.name for column in reproduction.columns],
        "rows": [
            {"label": row.label, "runs": {scale: _run(row, scale) for scale in reproduction.scales}}
            for row in reproduction.rows
        ],
    }


def _other(one: NoExperiment) -> dict[str, Any]:
    place = {"name": one.name, "paper": one.paper, "where": one.where, "title": ""}
    return place | {"data": [], "needs": one.why, "scales": {}, "columns": [], "rows": []}


def _any(row: Row, reproduction: Reproduction) -> list[str]:
    """Return the presets of a row at the largest scale where it has some."""
    return next(
        (list(names.values()) for scale in reversed(reproduction.scales) if (names := presets_of(row, scale))), []
    )


def _at(reproduction: Reproduction, scale: Scale) -> dict[str, Any]:
    names = {name: None for row in reproduction.rows for name in presets_of(row, scale).values()}
    if reproduction.needs_no_run:
        names.clear()
    costs = [run_cost(PRESETS[name]()) for name in names]
    return {
        "rows": sum(not objection(row, scale) for row in reproduction.rows),
        "runs": len(names),
        "client_macs": sum(cost.client_macs for cost in costs),
        "hours": sum(cost.hours for cost in costs),
    }


def _run(row: Row, scale: Scale) -> dict[str, Any]:
    reason = objection(row, scale)
    return {"missing": reason} if reason else {"presets": presets_of(row, scale)}


def _cell(at: dict[str, Any]) -> str:
    rows = f"{at['rows']} row{'s' if at['rows'] > 1 else ''}"
    if not at["runs"]:
        return f"{rows}, no run"
    hours = f"{max(at['hours'], 0.1):.1f}" if at["hours"] < 10 else f"{at['hours']:,.0f}"
    return f"{rows}, {amount(at['client_macs'])} MACs, {'<' if at['hours'] < 0.1 else ''}{hours} h"


def cells(entry: dict[str, Any]) -> dict[str, str]:
    """Return what a list in the terminal shows of an entry: rows, client MACs and rough hours at every scale.

    >>> shown = cells(overview()[0])
    >>> shown["name"], shown["data"], shown["laptop"].split(",")[0]
    ('digits-demo', 'digits', '3 rows')
    """
    where = f"{entry['paper'].partition(' (')[0]}, {entry['where']}"
    shown = {
        "name": entry["name"],
        "where": where if entry["rows"] else f"{where}: {entry['needs']}",
        "data": ", ".join(entry["data"]) or "–",
        "rows": str(len(entry["rows"]) or "–"),
    }
    for scale in ("laptop", "evening", "paper"):
        at = entry["scales"].get(scale)
        shown[scale] = _cell(at) if at and at["rows"] else "–"
    return shown
