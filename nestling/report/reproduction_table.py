"""The table of a reproduction: our figures, as means over seeds, beside the paper's."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nestling.experiment.reproductions.definitions import (
    COSTS,
    MEASURES,
    SHARES,
    SPENT,
    Column,
    Reproduction,
    Row,
    Scale,
    objection,
    presets_of,
)
from nestling.experiment.reproductions.expected_cost import level_costs, whole_model
from nestling.experiment.reproductions.finished_runs import Finished, FinishedRun
from nestling.report.runs_by_seed import Statistic, statistic
from nestling.settings import Experiment

_SMALLER = {
    "laptop": "scale laptop: smaller nets, fewer samples, clients and rounds; only the order of rows can be compared",
    "evening": "scale evening: fewer rounds or smaller nets than the paper's; see the presets",
}
_THOUSANDS = ((1e9, "B"), (1e6, "M"), (1e3, "K"))


@dataclass(frozen=True)
class Cell:
    """Our figure at the best round and after the last one, formatted, and the paper's as printed."""

    ours: Statistic | None
    final: Statistic | None
    text: str
    paper: str

    @property
    def pair(self) -> str:
        """Both, ours first and the paper's in parentheses."""
        return f"{self.text or '–'} ({self.paper})" if self.paper else self.text or "–"


@dataclass(frozen=True)
class TableRow:
    """A row: its cells, the number of seeds of its runs, and why it was not run, if so."""

    row: Row
    cells: tuple[Cell, ...]
    seeds: tuple[int, ...]
    missing: str = ""

    @property
    def seeds_text(self) -> str:
        """The number of seeds; of several runs with different numbers, the smallest and the largest."""
        if not self.seeds:
            return "–"
        low, high = min(self.seeds), max(self.seeds)
        return str(low) if low == high else f"{low}–{high}"


@dataclass(frozen=True)
class Table:
    """A reproduction with its figures."""

    reproduction: Reproduction
    scale: Scale
    rows: tuple[TableRow, ...]
    notes: tuple[str, ...]

    @property
    def measured(self) -> list[tuple[int, Column]]:
        """The columns that training fills, with their places."""
        return [(place, column) for place, column in enumerate(self.reproduction.columns) if column.measure in MEASURES]


def build(
    reproduction: Reproduction,
    rows: Sequence[Row],
    scale: Scale,
    *,
    seeds: int,
    finished: Finished,
    experiments: Mapping[str, Experiment],
    notes: Sequence[str] = (),
) -> Table:
    """Return the table of a reproduction from the runs that are finished.

    Parameters
    ----------
    reproduction, rows, scale, seeds
        The table, which of its rows, at which scale, and how many seeds.
    finished
        Runs that are done, whatever they belong to.
    experiments
        Preset → experiment as it is run.
    notes
        Further sentences below the table.
    """
    reference = next((row for row in reproduction.rows if row.name == reproduction.reference), None)
    built = []
    for row in rows:
        presets = presets_of(row, scale)
        runs = {run: _runs(finished, preset, seeds) for run, preset in presets.items()}
        base = (
            {run: _runs(finished, name, seeds) for run, name in presets_of(reference, scale).items()}
            if reference
            else {}
        )
        cells = [
            _cell(
                column,
                row.paper[place] if row.paper else "",
                _filled(column, presets, runs, base, experiments),
                final=reproduction.shown == "final",
            )
            for place, column in enumerate(reproduction.columns)
        ]
        counts = () if reproduction.needs_no_run else tuple(len(several) for several in runs.values())
        built.append(TableRow(row, tuple(cells), counts, objection(row, scale)))
    shares = [column.name for column in reproduction.columns if column.measure in SHARES]
    if reference and shares and not any(preset in presets_of(reference, scale).values() for preset, _ in finished):
        notes = [f"{', '.join(shares)}: unknown until the row {reference.name!r} has finished", *notes]
    return Table(reproduction, scale, tuple(built), (*_notes(reproduction, scale, built, finished), *notes))


def as_json(table: Table) -> dict[str, Any]:
    """Return a table as JSON-compatible values; figures are shares, counts and bytes, not formatted."""
    reproduction = table.reproduction
    return {
        "name": reproduction.name,
        "paper": reproduction.paper,
        "where": reproduction.where,
        "title": reproduction.title,
        "scale": table.scale,
        "columns": [column.name for column in reproduction.columns],
        "rows": [
            {
                "label": row.row.label,
                "presets": presets_of(row.row, table.scale),
                "seeds": list(row.seeds),
                "missing": row.missing or None,
                "note": row.row.note or None,
                "cells": [
                    {"best": _plain(cell.ours), "final": _plain(cell.final), "text": cell.text, "paper": cell.paper}
                    for cell in row.cells
                ],
            }
            for row in table.rows
        ],
        "notes": list(table.notes),
    }


def paper_value(text: str) -> float | None:
    """Return the number that a paper prints, without its deviation.

    >>> paper_value("63.90 ± 2.74"), paper_value("782 K"), paper_value("")
    (63.9, 782000.0, None)
    """
    match = re.match(r"\s*(\d+(?:\.\d+)?)\s*([KMB]?)", text)
    if match is None:
        return None
    return float(match[1]) * {"K": 1e3, "M": 1e6, "B": 1e9, "": 1.0}[match[2]]


def format_value(column: Column, value: float) -> str:
    """Return a figure as the paper writes such ones.

    >>> format_value(Column("Parameters", "parameters", unit="count", digits=0), 781_734)
    '782 K'
    """
    if column.unit == "percent":
        return f"{100 * value:.{column.digits}f}"
    if column.unit == "MB":
        return f"{value / 2**20:.{column.digits}f}"
    if column.unit == "count":
        for size, letter in _THOUSANDS:
            if value >= size:
                return f"{value / size:.{column.digits if letter == 'K' else max(column.digits, 1)}f} {letter}"
        return f"{value:.0f}"
    return f"{value:.{column.digits}f}"


def _runs(finished: Finished, preset: str, seeds: int) -> list[FinishedRun]:
    return [finished[preset, seed] for seed in range(seeds) if (preset, seed) in finished]


_Filled = tuple[Statistic | None, Statistic | None]


def _filled(
    column: Column,
    presets: Mapping[str, str],
    runs: Mapping[str, Sequence[FinishedRun]],
    reference: Mapping[str, Sequence[FinishedRun]],
    experiments: Mapping[str, Experiment],
) -> _Filled:
    """Return our figures of a cell: at the best round, and after the last one."""
    run = column.run or next(iter(presets), "")
    if column.measure in COSTS:
        preset = presets.get(run)
        value = None if preset is None else statistic([_cost(column, experiments[preset])])
        return value, value
    several = runs.get(run, ())
    if column.most_bytes:
        within = _known([_at(one.curve, column.measure, column.most_bytes) for one in several])
        return within, within
    if column.measure in SPENT:
        spent = _known([_spent(one.curve, column) for one in several])
        return spent, spent
    if column.measure in MEASURES:
        return _over_seeds([one.best for one in several], column), _over_seeds([one.final for one in several], column)
    base = {one.seed: one for one in reference.get(run, ())}
    key = "bytes_down" if column.measure == "parameters_share" else "client_macs"
    pairs = [(one, base[one.seed]) for one in several if one.seed in base]
    best = [_share(key, one, other, one.best.get("round")) for one, other in pairs]
    final = [_share(key, one, other, one.final.get("round")) for one, other in pairs]
    return _known(best), _known(final)


def _over_seeds(several: Sequence[Mapping[str, float | None]], column: Column) -> Statistic | None:
    return _known([figures.get(column.measure) for figures in several])


def _known(values: Sequence[float | None]) -> Statistic | None:
    return statistic(value for value in values if value is not None)


def _share(key: str, run: FinishedRun, reference: FinishedRun, number: float | None) -> float | None:
    """Return what clients took until a round, over what those of the reference took until the same round."""
    own, other = (None if number is None else _until(one.curve, key, number) for one in (run, reference))
    return own / other if own is not None and other else None


def _at(curve: Mapping[str, Sequence[float | None]], measure: str, most_bytes: float) -> float | None:
    """Return a measure at the last evaluated round until which clients received at most so many bytes in all."""
    received, values = curve["bytes_down"], curve.get(measure, [])
    within = [
        value for count, value in zip(received, values, strict=False) if count is not None and count <= most_bytes
    ]
    return within[-1] if within else None


def _spent(curve: Mapping[str, Sequence[float | None]], column: Column) -> float | None:
    """Return what a run took in all, or until it first reached an accuracy; None if it never did."""
    values, accuracies = curve.get(column.measure, []), curve.get("global_accuracy", [])
    if not column.reach:
        return values[-1] if values else None
    there = (
        value
        for value, accuracy in zip(values, accuracies, strict=False)
        if accuracy is not None and accuracy >= column.reach
    )
    return next(there, None)


def _until(curve: Mapping[str, Sequence[float | None]], key: str, number: float) -> float | None:
    """Return what was taken until a round; between two rounds of the curve, in proportion to their distance."""
    before = 0.0, 0.0
    for place, value in zip(curve["round"], curve[key], strict=True):
        if place is None or value is None:
            return None
        if place >= number:
            share = (number - before[0]) / (place - before[0])
            return before[1] + share * (value - before[1])
        before = place, value
    return None


def _cost(column: Column, experiment: Experiment) -> float:
    """Return a cost of a mix: the mean over its levels (HeteroFL, Section 4); or what `COSTS` says."""
    if column.measure == "whole_parameters":
        return whole_model(experiment)[0]
    levels = level_costs(experiment)
    if column.measure == "submodel_parameters":
        return sum(level.parameters for level in levels) / len(levels)
    if column.measure == "submodel_flops":
        return column.macs * sum(level.macs for level in levels) / len(levels)
    parameters = sum(level.share * level.parameters for level in levels)
    if column.measure == "ratio":
        return parameters / max(level.parameters for level in levels)
    if column.measure == "flops":
        return column.macs * sum(level.share * level.macs for level in levels)
    return parameters * 4 if column.measure == "space" else parameters  # weights of 32 bits, without statistics


def _cell(column: Column, paper: str, filled: _Filled, *, final: bool) -> Cell:
    best, last = filled
    ours = last if final else best
    text = "" if ours is None else format_value(column, ours.mean)
    if ours is not None and ours.deviation is not None:
        text += f" ± {format_value(column, ours.deviation)}"
    return Cell(ours, last, text, paper)


def _notes(reproduction: Reproduction, scale: Scale, rows: Sequence[TableRow], finished: Finished) -> list[str]:
    paper = any(row.row.paper for row in rows)
    when = "after the last round" if reproduction.shown == "final" else "at the best round on the test set"
    notes = ["known without a run" if reproduction.needs_no_run else f"{when}, ± standard deviation over seeds"]
    if paper:
        notes = [f"ours (the paper's); ours {notes[0]}"]
    if scale in _SMALLER and paper:
        notes.append(_SMALLER[scale])
    if reproduction.note:
        notes.append(reproduction.note)
    reasons: dict[str, list[str]] = {}
    for row in rows:
        missing = row.row.missing or (row.missing and f"there is no preset at scale {scale}")
        reason = f"not run, {missing}" if missing else row.row.note
        if reason:
            reasons.setdefault(reason, []).append(row.row.name)
    notes += [f"{', '.join(names)}: {reason}" for reason, names in reasons.items()]
    used = {name for row in rows for name in presets_of(row.row, scale).values()}
    versions = sorted({run.version for run in finished.values() if run.preset in used})
    if len(versions) > 1:
        notes.append(f"runs of Nestling {', '.join(versions)}")
    return notes


def _plain(value: Statistic | None) -> dict[str, Any] | None:
    return None if value is None else {"mean": value.mean, "deviation": value.deviation, "values": list(value.values)}
