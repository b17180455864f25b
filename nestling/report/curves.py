"""Learning curves: a measure against rounds, bytes, MACs and simulated time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nestling.report.measures import TITLES, direction, is_share, leading, title
from nestling.report.panels import Figure, axis, lines, panel, short
from nestling.report.read import Round
from nestling.report.runs_by_seed import Experiment, statistic

_FAR = 2.5  # use a logarithmic axis if one experiment spends so many times what another does
_MOST_POINTS, _MOST_NUMBERS = 400, 60_000  # of a curve, and of all curves: pages stay small

_PLACES: dict[str, Any] = {
    "round": lambda entry: entry.round,
    "bytes": lambda entry: entry.bytes,
    "macs": lambda entry: entry.client_macs,
    "seconds": lambda entry: entry.simulated_seconds,
}


@panel(
    "Learning curves",
    "The mean over seeds after every evaluated round; the band is one standard deviation. Against data, computation or "
    "time, further left is cheaper.",
    section="curves",
)
def learning_curves(groups: Sequence[Experiment]) -> Figure | None:
    """Draw every measure against rounds, bytes sent, MACs of clients, and simulated time where there is a clock."""
    measures = chosen(groups)
    most = max(50, min(_MOST_POINTS, _MOST_NUMBERS // max(1, len(groups) * len(measures))))
    series: list[dict[str, Any]] = [
        {"experiment": group.number, **_thinned(track, most)}
        for group in groups
        if (track := curve(group, [measure["name"] for measure in measures]))
    ]
    if not series or not measures:
        return None
    axes = [
        axis("round", "round"),
        axis("bytes", "data sent, both ways", "bytes", log=_is_wide(series, "bytes")),
        axis("macs", "client computation", "macs", log=_is_wide(series, "macs")),
    ]
    if any(any(one["x"]["seconds"]) for one in series):
        axes.append(axis("seconds", "simulated time", "seconds", log=_is_wide(series, "seconds")))
    return lines(axes, measures, series)


def chosen(groups: Sequence[Experiment]) -> list[dict[str, Any]]:
    """Return the measures that a reader of the page can choose from; the one that runs are judged by comes first."""
    runs = [run for group in groups for run in group.runs]
    seen: dict[str, list[float]] = {}
    for run in runs:
        for entry in run.history:
            for name, value in (entry.measured.values if entry.measured else {}).items():
                seen.setdefault(name, []).append(value)
    metrics = next((run.metrics for run in runs if run.metrics), ())
    lead = leading(seen, metrics)
    order = dict.fromkeys([*([lead] if lead else ()), *(name for name in TITLES if name in seen), *seen])
    return [
        axis(
            name,
            title(name),
            "percent" if is_share(name, max(seen[name]), metrics) else "number",
            better=direction(name, max(seen[name]), metrics),
        )
        for name in order
    ]


def curve(group: Experiment, names: Sequence[str]) -> dict[str, dict[str, list[float | None]]]:
    """Return the places, values and deviations of measures after every round that all counted runs evaluated.

    A value is None where a run that has this measure elsewhere has none; the result is empty if no round is left.
    """
    tracks: list[dict[int, Round]] = []
    for run in group.counted:
        track = {entry.round: entry for entry in run.history if entry.measured}
        if track:
            tracks.append(track)
    rounds = sorted(set.intersection(*map(set, tracks))) if tracks else []
    if not rounds:
        return {}
    x: dict[str, list[float | None]] = {
        place: [_mean([of(track[number]) for track in tracks]) for number in rounds] for place, of in _PLACES.items()
    }
    y: dict[str, list[float | None]] = {}
    deviation: dict[str, list[float | None]] = {}
    for name in names:
        values = [[_value(track[number], name) for number in rounds] for track in tracks]
        having = [line for line in values if any(value is not None for value in line)]
        if not having:
            continue
        known = [[value for value in at if value is not None] for at in zip(*having, strict=True)]
        points = [statistic(values) if len(values) == len(having) else None for values in known]
        y[name] = [point.mean if point else None for point in points]
        if any(point and point.deviation for point in points):
            deviation[name] = [point.deviation if point else None for point in points]
    return {"x": x, "y": y, "deviation": deviation}


def _value(entry: Round, name: str) -> float | None:
    return entry.measured.values.get(name) if entry.measured else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def _thinned(track: dict[str, dict[str, list[float | None]]], most: int) -> dict[str, dict[str, list[float | None]]]:
    """Return at most about `most` points of a curve, evenly chosen, the first and the last among them."""
    count = len(track["x"]["round"])
    kept = sorted({round(place * (count - 1) / (most - 1)) for place in range(most)}) if count > most else range(count)
    return {
        key: {name: [short(values[place]) for place in kept] for name, values in columns.items()}
        for key, columns in track.items()
    }


def _is_wide(series: Sequence[dict[str, Any]], name: str) -> bool:
    """Return whether the ends of curves are so far apart that only a logarithmic axis shows all of them."""
    ends = [known[-1] for one in series if (known := [x for x in one["x"][name] if x is not None])]
    starts = [known[0] for one in series if (known := [x for x in one["x"][name] if x is not None])]
    return bool(ends) and min(starts) > 0 and max(ends) > _FAR * min(ends)
