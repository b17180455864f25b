"""Panels of final results: by the size of sub-models, by client, and how often every unit was trained."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import groupby
from typing import Any

from nestling.report.measures import leading
from nestling.report.panels import Figure, colour, figure, label, line, mark, panel, tint
from nestling.report.read import Run
from nestling.report.runs_by_seed import Experiment, experiments, statistic

_POINTS = 1000  # draw single clients of an experiment up to this number, and only their distribution beyond
_LETTERS = 24  # the length of a name beside a violin; the legend shows all of it
_STEPS = 128  # the parts of a strip


@panel("Sub-models by size", "Final result of every sub-model against its parameters: flat is good for small devices.")
def by_size(runs: Sequence[Run]) -> Figure | None:
    """Draw the result of sub-models against their number of parameters."""
    data, kinds = [], set()
    for experiment in experiments(runs):
        points = []
        for level, cost in next((run.levels for run in experiment.counted if run.levels), {}).items():
            measured = [run.final.submodels.get(level, {}) for run in experiment.counted if run.final]
            metrics = experiment.runs[0].metrics
            first = metrics[0].name if metrics else "accuracy"
            kind = first if any(first in values for values in measured) else leading(measured[0] if measured else ())
            value = statistic(values[kind] for values in measured if kind in values) if kind else None
            if value and kind and cost.parameters:
                kinds.add(kind)
                points.append((cost.parameters, value, level))
        if not points:
            continue
        points.sort(key=lambda point: point[0])
        trace = line(experiment, [parameters for parameters, _, _ in points], [value.mean for _, value, _ in points])
        trace["mode"] = "lines+markers"
        trace["text"] = [f"sub-model {escape(level)}" for _, _, level in points]
        if any(value.deviation for _, value, _ in points):
            spread = [value.deviation or 0 for _, value, _ in points]
            trace["error_y"] = {"array": spread, "thickness": 1.25, "width": 3, "color": colour(experiment.number)}
        data.append(trace)
    if not data:
        return None
    share = kinds == {"accuracy"}
    return figure(
        data,
        "parameters",
        "accuracy" if share else " / ".join(sorted(kinds)),
        xaxis={"type": "log", "dtick": 1, "minor": {"dtick": "D1", "ticks": "outside", "ticklen": 3}},
        yaxis={"tickformat": ".1~%"} if share else {},
    )


@panel(
    "Local accuracy of clients", "Each point is a client on data like its own, after the last round: narrow is fair."
)
def by_client(runs: Sequence[Run]) -> Figure | None:
    """Draw the distribution of local accuracy over clients."""
    data: list[dict[str, Any]] = []
    short: dict[str, str] = {}
    for experiment in reversed(experiments(runs)):  # plotly draws the first at the bottom
        cut = experiment.label if len(experiment.label) <= _LETTERS else experiment.label[: _LETTERS - 1] + "…"
        short[str(experiment.number)] = escape(cut)
        values = [value for run in experiment.counted for value in run.local.values()]
        if not values:
            continue
        few = len(values) <= _POINTS
        data.append(
            {
                "type": "violin",
                "orientation": "h",
                "x": values,
                "y0": str(experiment.number),
                "name": label(experiment),
                "points": "all" if few else False,
                "jitter": 0.6,
                "pointpos": 0,
                "spanmode": "hard",
                "width": 0.9,
                "marker": {"size": 3, "opacity": 0.45, "color": colour(experiment.number)},
                "line": {"color": colour(experiment.number), "width": 1.25},
                "fillcolor": tint(experiment.number, 0.14),
                "meanline": {"visible": True, "width": 2},
                "hoveron": "points",
                "meta": mark(experiment),
            }
        )
    if not data:
        return None
    names = {"tickvals": [trace["y0"] for trace in data], "ticktext": [short[trace["y0"]] for trace in data]}
    return figure(
        data,
        "local accuracy",
        "",
        height=150 + 64 * len(data),
        xaxis={"tickformat": ".1~%"},
        yaxis={"type": "category", "showgrid": False} | names,
    )


@panel(
    "How evenly units were trained",
    "A strip is an axis, from its first unit to its last; the darker, the more often clients trained that part of it, "
    "compared with the most trained unit of the axis. The number is the least trained unit over the most trained one.",
    wide=True,
)
def coverage(runs: Sequence[Run]) -> str | None:
    """Draw how often every part of every axis was trained."""
    blocks = [block for experiment in experiments(runs) if (block := _strips(experiment))]
    return f'<div class="coverage">{"".join(blocks)}</div>' if blocks else None


def _strips(experiment: Experiment) -> str:
    rows = []
    for axis in {axis: None for run in experiment.counted for axis in run.coverage}:
        counts = [run.coverage[axis] for run in experiment.counted if axis in run.coverage]
        size = min(map(len, counts))
        units = [sum(values) for values in zip(*(count[:size] for count in counts), strict=True)]
        most = max(units)
        even = f"{min(units) / most:.0%}" if most else "–"
        rows.append(
            f'<div class="axis"><span class="name" title="{escape(axis)}">{escape(axis)}</span>'
            f'<svg viewBox="0 0 {_STEPS} 1" preserveAspectRatio="none" role="img" aria-label="{escape(axis)}, '
            f'{size} units: the least trained got {even} of the most trained">{_boxes(units)}</svg>'
            f'<span class="even">{even}</span></div>'
        )
    if not rows:
        return ""
    return (
        f'<section class="strips" data-experiment="{experiment.number}" style="color: {colour(experiment.number)}">'
        f"<h4>{label(experiment)}</h4>{''.join(rows)}</section>"
    )


def _boxes(units: Sequence[float]) -> str:
    """Return a strip as rectangles; neighbours of the same shade are joined."""
    boxes, start = [], 0
    for shade, same in groupby(shades(units)):
        width = len(list(same))
        boxes.append(f'<rect x="{start}" width="{width}" height="1" fill-opacity="{shade:g}"/>')
        start += width
    return "".join(boxes)


def shades(units: Sequence[float]) -> list[float]:
    """Return the shade of each part of a strip in [0, 1]: the mean of its units over the most trained unit.

    >>> strip = shades([4, 4, 2, 0])
    >>> len(strip), strip[0], strip[63], strip[64], strip[127]
    (128, 1.0, 1.0, 0.5, 0.0)
    """
    most, size = max(units), len(units)
    strip = []
    for step in range(_STEPS):
        first = step * size // _STEPS
        part = units[first : max(first + 1, (step + 1) * size // _STEPS)]
        strip.append(round(sum(part) / len(part) / most, 2) if most else 0.0)
    return strip
