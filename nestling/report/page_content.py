"""What the page about some runs shows, as one dictionary of plain values.

=============  =======================================================================================================
``title``      of the browser's tab
``kicker``     a line above the heading: how many experiments and runs
``heading``    the result in one sentence; ``sentences`` say more
``tiles``      large numbers: ``label``, ``value``, ``note``
``problems``   sentences about what is missing, unfinished or damaged
experiments    ``number``, ``name`` (short), ``label`` (unique), ``method``, ``colour``, ``symbol``, ``hollow``,
               ``finished``, ``rounds`` and ``rounds_done``
``panels``     ``name``, ``title``, ``about``, ``section`` and ``figures``, which `nestling.report.panels` describes
``tables``     ``name``, ``section``, ``title``, ``about``, ``note``, ``columns`` and ``rows`` of cells: ``text``,
               ``value``, ``best``
``runs``       by experiment: seed, state, command, config.toml
=============  =======================================================================================================
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from nestling.amounts import duration
from nestling.report import curves, morphs, spread, submodel_panel
from nestling.report.headline import Headline, headline
from nestling.report.legend import display_names, looks
from nestling.report.measures import written
from nestling.report.panels import PANELS, Draw
from nestling.report.read import Run
from nestling.report.runs_by_seed import Experiment, experiments
from nestling.report.table import columns, compare, note, sizes_table

# The order of panels in their sections; those that others register follow.
_ORDER: tuple[Draw, ...] = (
    spread.by_size,
    curves.learning_curves,
    spread.nested,
    spread.participation,
    spread.by_client,
    spread.coverage,
    submodel_panel.steps,
    submodel_panel.weights,
    morphs.kept,
    morphs.networks,
    morphs.gap,
)

_WRONG_VALUES = (TypeError, ValueError, KeyError, IndexError, AttributeError, ArithmeticError)


def content(runs: Sequence[Run], problems: Sequence[str] = (), *, live: bool = False) -> dict[str, Any]:
    """Return what the page about `runs` shows; `problems` are those of runs that could not be read.

    A ``live`` page does not name the runs that go on, as its status does.

    Nothing that a run directory holds makes this fail: a panel that cannot be drawn becomes one of the ``problems``.

    >>> page = content([], ["there is no run in 'here'"])
    >>> page["heading"], page["problems"], page["panels"]
    ('Nothing was measured yet', ["there is no run in 'here'"], [])
    """
    groups = experiments(runs)
    notices = [*problems, *_notices(runs, live=live)]
    try:
        result = headline(groups)
    except _WRONG_VALUES as problem:
        result = Headline(_count(groups, runs))
        notices.append(f"the results cannot be summed up: {type(problem).__name__}: {problem}")
    panels = []
    for panel in sorted(PANELS, key=lambda panel: (*_ORDER, panel.draw).index(panel.draw)):
        try:
            drawn = panel.draw(groups)
        except _WRONG_VALUES as problem:
            notices.append(f"the panel {panel.title!r} cannot be drawn: {type(problem).__name__}: {problem}")
            continue
        figures = drawn if isinstance(drawn, list) else [drawn] if drawn else []
        if figures:
            described = {"name": panel.name, "title": panel.title, "about": panel.about, "section": panel.section}
            panels.append({**described, "figures": figures})
    page = {
        "title": f"{result.heading} – Nestling",
        "kicker": _count(groups, runs),
        "heading": result.heading,
        "sentences": result.sentences,
        "tiles": result.tiles,
        "problems": notices,
        "experiments": _experiments(groups),
        "panels": panels,
        "tables": _tables(runs, groups),
        "runs": [{"experiment": group.number, "runs": [_run(run) for run in group.runs]} for group in groups],
    }
    return {key: plain(value) for key, value in page.items()}


def plain(value: Any) -> Any:
    """Return a value for JSON: numbers that are not finite become None, tuples lists, and keys texts.

    >>> plain({"loss": (1.0, float("nan"))})
    {'loss': [1.0, None]}
    """
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, str | int | float) else str(value)


def _count(groups: Sequence[Experiment], runs: Sequence[Run]) -> str:
    if not runs:
        return "Nestling report"
    data = sorted({run.dataset for run in runs if run.dataset})
    counts = f"{len(groups)} experiment{'s' * (len(groups) > 1)}, {len(runs)} run{'s' * (len(runs) > 1)}"
    return " · ".join(["Nestling report", *([", ".join(data)] if data else []), counts])


def _notices(runs: Sequence[Run], *, live: bool) -> list[str]:
    """Return sentences about runs that are unfinished, that tested nothing, or whose numbers are not finite."""
    notices = []
    for run in runs:
        name = f"{run.name or 'unnamed'} (seed {run.seed})"
        if not run.finished:
            state = f"{run.rounds_done} of {run.rounds} rounds" if run.rounds_done else "no round is complete"
            if not _goes_on(run):
                notices.append(f"{name} is not finished ({state}); it goes on with: nestling resume {run.directory}")
            elif not live:
                notices.append(f"{name} is running ({state})")
        elif not run.final:
            notices.append(f"{name} tested nothing: it has no evaluation")
        lost: dict[str, int] = {}
        for entry in run.history:
            values = entry.evaluation or {}
            for measure in [measure for measure, value in values.items() if value is None]:
                lost[measure] = lost.get(measure, 0) + 1
            if entry.train_loss is None and any(entry.levels.values()):
                lost["train_loss"] = lost.get("train_loss", 0) + 1
        if lost:
            counts = ", ".join(f"{measure} ({count} times)" for measure, count in lost.items())
            notices.append(f"{name} holds values that are not numbers, drawn as gaps: {counts}")
    return notices


def _goes_on(run: Run) -> bool:
    from nestling.experiment.progress_file import read_progress  # noqa: PLC0415 (PyTorch takes long to import)

    return read_progress(run.directory) is not None


def _experiments(groups: Sequence[Experiment]) -> list[dict[str, Any]]:
    return [
        {
            "number": group.number,
            "name": name,
            "label": group.label,
            "method": group.runs[0].method,
            "colour": look.colour,
            "symbol": look.symbol,
            "hollow": look.hollow,
            "finished": group.finished,
            "rounds": max(run.rounds for run in group.counted),
            "rounds_done": max(run.rounds_done for run in group.counted),
        }
        for group, look, name in zip(groups, looks(groups), display_names(groups), strict=True)
    ]


def _tables(runs: Sequence[Run], groups: Sequence[Experiment]) -> list[dict[str, Any]]:
    if not runs:
        return []
    comparison = columns(compare(runs))
    cells = zip(*([cell.text for cell in column.cells] for column in comparison), strict=True)
    tables: list[dict[str, Any]] = [
        {
            "name": "comparison",
            "section": "overview",
            "title": "Comparison",
            "about": "",
            "note": f"{note((column.title for column in comparison), cells)}.",
            "columns": [{"title": column.title, "side": column.side} for column in comparison],
            "rows": [
                {"experiment": group.number, "cells": [vars(column.cells[place]) for column in comparison]}
                for place, group in enumerate(groups)
            ],
        }
    ]
    return [*tables, *([sizes] if (sizes := sizes_table(groups)) else [])]


def _run(run: Run) -> dict[str, Any]:
    state = [f"{run.rounds_done} of {run.rounds} rounds" if not run.finished else f"{run.rounds_done} rounds"]
    if run.final and run.leading:
        state.append(written(run.leading, run.final.values[run.leading], metrics=run.metrics))
    if run.seconds is not None:
        state.append(duration(run.seconds))
    if not run.finished:
        state.append("unfinished")
    return {"seed": run.seed, "state": " · ".join(state), "command": run.command, "config": run.config}
