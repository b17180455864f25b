"""Panels of methods whose sub-models have their own tensors (NeFL, Figures 3a and 3b)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from nestling.report.panels import Figure, figure, label, mark, panel
from nestling.report.read import Run
from nestling.report.runs_by_seed import experiments

_SHADES = ("#c6dbef", "#9ecae1", "#6baed6", "#3182bd", "#08519c", "#08306b")  # from the smallest to the whole model


@panel("Step sizes", "The step that every block takes in each sub-model, after the last round; 1 is where they begin.")
def steps(runs: Sequence[Run]) -> Figure | None:
    """Draw the learned step sizes of sub-models, block by block (NeFL, Figure 3a)."""
    return _by_place(runs, "steps", "block", "step size")


@panel("Weights of sub-models", "The mean size of a weight, |w|, in every layer of each sub-model.")
def weights(runs: Sequence[Run]) -> Figure | None:
    """Draw the L1 norm of weights, averaged by their number, layer by layer (NeFL, Figure 3b)."""
    return _by_place(runs, "weights", "layer", "mean |w|")


def _by_place(runs: Sequence[Run], key: str, x: str, y: str) -> Figure | None:
    data = []
    for experiment in experiments(runs):
        levels = next((run.panels[key] for run in experiment.counted if _is_by_level(run.panels.get(key))), None)
        if levels is None:
            continue
        widest = max(levels.values(), key=len)
        order = {name: place for place, name in enumerate(widest)}
        for place, level in enumerate(reversed(levels)):  # the widest comes first
            values = {name: value for name, value in levels[level].items() if name in order}
            shade = _SHADES[place * len(_SHADES) // len(levels)]
            data.append(
                {
                    "type": "scatter",
                    "mode": "lines+markers",
                    "x": [order[name] for name in values],
                    "y": list(values.values()),
                    "text": [escape(name) for name in values],
                    "name": f"{label(experiment)}: {escape(level)}",
                    "line": {"color": shade, "width": 2},
                    "marker": {"size": 5},
                    "meta": mark(experiment),
                    "hovertemplate": f"sub-model {escape(level)}<br>%{{text}}: %{{y:.3g}}<extra></extra>",
                }
            )
    return figure(data, x, y) if data else None


def _is_by_level(value: Any) -> bool:
    """Return whether a value describes sub-models: level → name → number."""
    levels = list(value.values()) if isinstance(value, Mapping) else []
    return all(isinstance(values, Mapping) for values in levels) and any(levels)
