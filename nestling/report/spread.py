"""Panels of final results: by size, by client, who took part, and how often every unit was trained."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from nestling.report.level_results import level_results
from nestling.report.measures import is_share, title
from nestling.report.panels import Figure, axis, lines, panel, short
from nestling.report.runs_by_seed import Experiment

_STEPS = 128  # the parts of a strip
_SHADES = "0123456789abcdefghijklmnopqrstuvwxyz"
_BINS = 25  # of the distribution of local accuracy


@panel(
    "Accuracy against size",
    "The final result of every size of every method, against what the size costs. High and flat is good: small devices "
    "are served as well as large ones. A single point is a method with one model for all devices.",
    section="first",
)
def by_size(groups: Sequence[Experiment]) -> Figure | None:
    """Draw the result of sub-models against their parameters, or their bytes, or the MACs of a sample."""
    series: list[dict[str, Any]] = []
    kinds: dict[str, float] = {}
    for group in groups:
        results = [result for result in level_results(group) if result.value]
        results.sort(key=lambda result: result.cost.parameters)
        if not results:
            continue
        values = [result.value for result in results if result.value]
        kinds[results[0].kind] = max(value.mean for value in values)
        costs = [result.cost for result in results]
        series.append(
            {
                "experiment": group.number,
                "x": {
                    "parameters": [cost.parameters for cost in costs],
                    "bytes": [cost.bytes for cost in costs],
                    "macs": [cost.macs for cost in costs],
                },
                "y": {"score": [short(value.mean) for value in values]},
                "deviation": {"score": [short(value.deviation) for value in values]},
                "texts": [f"level {result.name}" for result in results],
            }
        )
    if not series:
        return None
    metrics = next((group.runs[0].metrics for group in groups if group.runs[0].metrics), ())
    shares = {is_share(kind, highest, metrics) for kind, highest in kinds.items()}
    name = " / ".join(sorted(map(title, kinds)))
    costs_known = {key: any(any(one["x"][key]) for one in series) for key in ("bytes", "macs")}
    axes = [axis("parameters", "parameters", "count", log=True)]
    if costs_known["bytes"]:
        axes.append(axis("bytes", "bytes of the sub-model", "bytes", log=True))
    if costs_known["macs"]:
        axes.append(axis("macs", "MACs of a sample, forward", "macs", log=True))
    measures = [axis("score", name, "percent" if shares == {True} else "number")]
    return lines(axes, measures, series, guides=True, errors=True)


@panel(
    "Nested sizes",
    "The areas are the parameters of the sub-models, each of which lies inside the larger ones.",
    section="overview",
)
def nested(groups: Sequence[Experiment]) -> list[Figure] | None:
    """Draw the sub-models as squares inside one another, once for all experiments that have the same sizes."""
    figures: dict[tuple[Any, ...], Figure] = {}
    for group in groups:
        results = level_results(group)
        if len(results) < 2:
            continue
        sizes = [
            {
                "name": result.name,
                "parameters": result.cost.parameters,
                "bytes": result.cost.bytes,
                "macs": result.cost.macs,
            }
            for result in results
        ]
        key = tuple((size["name"], size["parameters"]) for size in sizes)
        figures.setdefault(key, {"kind": "nested", "sizes": sizes, "experiments": []})["experiments"].append(
            group.number
        )
    return list(figures.values()) or None


@panel(
    "Local accuracy of clients",
    "How many clients reach which accuracy on data like their own, after the last round (FedRolex, Figure 5): narrow "
    "and far right is fair. The mark is the mean, the bar below reaches from the tenth to the ninetieth percentile.",
    section="overview",
)
def by_client(groups: Sequence[Experiment]) -> Figure | None:
    """Draw the distribution of local accuracy over clients."""
    known = {group.number: [value for run in group.counted for value in run.local.values()] for group in groups}
    known = {number: sorted(values) for number, values in known.items() if values}
    if not known:
        return None
    low = math.floor(20 * min(values[0] for values in known.values())) / 20
    high = math.ceil(20 * max(values[-1] for values in known.values())) / 20
    high = high if high > low else low + 0.05
    rows = [
        {
            "experiment": number,
            "bins": _counts(values, low, high),
            "mean": short(math.fsum(values) / len(values)),
            "quantiles": [short(_quantile(values, share)) for share in (0.1, 0.5, 0.9)],
            "count": len(values),
        }
        for number, values in known.items()
    ]
    return {"kind": "spread", "unit": "percent", "title": "local accuracy", "low": low, "high": high, "rows": rows}


def _counts(values: Sequence[float], low: float, high: float) -> list[int]:
    """Return how many values are in each of the bins between two ends.

    >>> _counts([0.0, 0.99, 1.0], 0.0, 1.0)[-1], sum(_counts([0.2, 0.5], 0.0, 1.0))
    (2, 2)
    """
    bins = [0] * _BINS
    for value in values:
        bins[max(0, min(_BINS - 1, int((value - low) / (high - low) * _BINS)))] += 1
    return bins


def _quantile(values: Sequence[float], share: float) -> float:
    """Return a quantile of sorted values, interpolated linearly.

    >>> _quantile([1.0, 2.0, 4.0], 0.75)
    3.0
    """
    place = share * (len(values) - 1)
    below = math.floor(place)
    above = min(below + 1, len(values) - 1)
    return values[below] + (values[above] - values[below]) * (place - below)


@panel(
    "Who took part",
    "How often clients trained which size, over all rounds and seeds, from the largest (dark) to the smallest.",
    section="overview",
)
def participation(groups: Sequence[Experiment]) -> Figure | None:
    """Draw the share of every level among those who trained, and the clients that were dropped."""
    rows = []
    for group in groups:
        history = [entry for run in group.counted for entry in run.history]
        counts: dict[str, int] = {}
        for entry in history:
            for level, count in entry.levels.items():
                counts[level] = counts.get(level, 0) + count
        if not sum(counts.values()):
            continue
        results = level_results(group)
        sizes = {level: result.name for result in results for level in result.levels}
        parts = dict.fromkeys(sizes.values(), 0)
        for level, count in sorted(counts.items()):
            name = (
                results[0].name if len(results) == 1 else sizes.get(level, level)
            )  # some train the same at all levels
            parts[name] = parts.get(name, 0) + count
        rows.append(
            {
                "experiment": group.number,
                "parts": [{"name": f"level {name}", "count": count} for name, count in parts.items() if count],
                "dropped": sum(entry.dropped for entry in history),
                "rounds": len(history),
            }
        )
    return {"kind": "shares", "rows": rows} if rows else None


@panel(
    "Coverage: how evenly units were trained",
    "A strip is an axis, from its first unit to its last; the darker, the more often clients trained that part of it, "
    "compared with the most trained unit of the axis. The number is the least trained unit over the most trained one.",
)
def coverage(groups: Sequence[Experiment]) -> list[Figure] | None:
    """Draw how often every part of every axis was trained."""
    figures = []
    for group in groups:
        rows = []
        for name in dict.fromkeys(name for run in group.counted for name in run.coverage):
            counts = [run.coverage[name] for run in group.counted if name in run.coverage]
            size = min(map(len, counts))
            units = [sum(values) for values in zip(*(count[:size] for count in counts), strict=True)]
            most = max(units)
            even = short(min(units) / most) if most else None
            rows.append({"name": name, "units": size, "even": even, "shades": shades(units)})
        if rows:
            figures.append({"kind": "strips", "experiment": group.number, "rows": rows, "title": "times trained"})
    return figures or None


def shades(units: Sequence[float]) -> str:
    """Return the shade of each part of a strip, from 0 to z: the mean of its units over the most trained unit.

    A letter per part keeps pages with many axes small.

    >>> strip = shades([4, 4, 2, 0])
    >>> len(strip), strip[0], strip[63], strip[64], strip[127]
    (128, 'z', 'z', 'i', '0')
    """
    most, size = max(units), len(units)
    strip = []
    for step in range(_STEPS):
        first = step * size // _STEPS
        part = units[first : max(first + 1, (step + 1) * size // _STEPS)]
        share = sum(part) / len(part) / most if most else 0.0
        strip.append(_SHADES[min(len(_SHADES) - 1, round(share * (len(_SHADES) - 1)))])
    return "".join(strip)
