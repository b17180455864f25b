"""Panels of methods whose sub-models have their own tensors (NeFL, Figures 3a and 3b)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nestling.report.panels import Figure, axis, lines, panel, short
from nestling.report.runs_by_seed import Experiment

_PALEST = 0.4  # the shade of the smallest sub-model; the whole model has the method's own colour


@panel(
    "Step sizes",
    "The step that every block takes in each sub-model, after the last round; all begin at 1 (NeFL, Figure 3a).",
)
def steps(groups: Sequence[Experiment]) -> list[Figure] | None:
    """Draw the learned step sizes of sub-models, block by block (NeFL, Figure 3a)."""
    return _by_place(groups, "steps", "block", "step size")


@panel("Weights of sub-models", "The mean size of a weight, |w|, in every layer of each sub-model (NeFL, Figure 3b).")
def weights(groups: Sequence[Experiment]) -> list[Figure] | None:
    """Draw the L1 norm of weights, averaged by their number, layer by layer (NeFL, Figure 3b)."""
    return _by_place(groups, "weights", "layer", "mean |w|")


def _by_place(groups: Sequence[Experiment], key: str, x: str, y: str) -> list[Figure] | None:
    figures = []
    for group in groups:
        levels = next((run.panels[key] for run in group.counted if _is_by_level(run.panels.get(key))), None)
        if levels is None:
            continue
        widest = max(levels.values(), key=len)
        order = {name: place + 1 for place, name in enumerate(widest)}
        series = []
        for place, level in enumerate(levels):  # the widest comes first
            values = {name: value for name, value in levels[level].items() if name in order and _is_number(value)}
            shade = 1 - (1 - _PALEST) * place / max(1, len(levels) - 1)
            series.append(
                {
                    "experiment": group.number,
                    "name": f"sub-model {level}",
                    "shade": round(shade, 3),
                    "x": {x: [order[name] for name in values]},
                    "y": {y: [short(value) for value in values.values()]},
                    "texts": list(values),
                }
            )
        figures.append(
            lines(
                [axis(x, f"{x}, from input to output")],
                [axis(y, y)],
                series,
                experiment=group.number,
                names=list(order),
            )
        )
    return figures or None


def _is_by_level(value: Any) -> bool:
    """Return whether a value describes sub-models: level → name → number."""
    levels = list(value.values()) if isinstance(value, Mapping) else []
    return all(isinstance(values, Mapping) for values in levels) and any(levels)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
