"""Learning curves: panels of a measure against rounds, bytes, MACs and simulated time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from nestling.amounts import BYTES, COUNTS, unit
from nestling.report.measures import TITLES, direction, is_share, leading, title
from nestling.report.panels import Figure, figure, label, line, mark, panel, tint
from nestling.report.read import Round, Run
from nestling.report.runs_by_seed import Experiment, Statistic, experiments, statistic

Point = tuple[float, Statistic]

_FAR = 2.5  # use a logarithmic axis if one experiment spends so many times what another does


def chosen(runs: Sequence[Run]) -> dict[str, dict[str, str | bool]]:
    """Return the measures that a reader of the page can choose from, with their title and whether it is a share.

    The measure that runs are judged by comes first.
    """
    seen: dict[str, list[float]] = {}
    for run in runs:
        for entry in run.history:
            for name, value in (entry.measured.values if entry.measured else {}).items():
                seen.setdefault(name, []).append(value)
    metrics = next((run.metrics for run in runs if run.metrics), ())
    lead = leading(seen, metrics)
    order = dict.fromkeys([*([lead] if lead else ()), *(name for name in TITLES if name in seen), *seen])
    less = {name for name in order if "loss" not in name and direction(name, max(seen[name]), metrics) == -1}
    return {
        name: {
            "title": title(name) + (" (lower is better)" if name in less else ""),
            "share": is_share(name, max(seen[name]), metrics),
        }
        for name in order
    }


def points(experiment: Experiment, name: str, along: Callable[[Round], float | None]) -> list[Point]:
    """Return x and the statistic of a measure over seeds after every round that all counted runs evaluated.

    `along` returns the x of a round; it is averaged over seeds, too.
    """
    tracks: list[dict[int, tuple[float, float]]] = []
    for run in experiment.counted:
        track = {}
        for entry in run.history:
            place = along(entry)
            if entry.measured and name in entry.measured.values and place is not None:
                track[entry.round] = (place, entry.measured.values[name])
        if track:
            tracks.append(track)
    result = []
    for number in sorted(set.intersection(*map(set, tracks)) if tracks else ()):
        places, values = zip(*(track[number] for track in tracks), strict=True)
        if over_seeds := statistic(values):
            result.append((sum(places) / len(places), over_seeds))
    return result


def _curves(
    runs: Sequence[Run], along: Callable[[Round], float | None], axis: str, units: tuple[str, ...] = ()
) -> Figure | None:
    measures = chosen(runs)
    tracks = [
        (experiment, name, track)
        for experiment in experiments(runs)
        for name in measures
        if (track := points(experiment, name, along))
    ]
    if not tracks:
        return None
    ends = [track[-1][0] for _, _, track in tracks]
    size, called = unit(max(ends), units) if units else (1, "")
    bands, lines = [], []
    for experiment, name, track in tracks:
        x = [place / size for place, _ in track]
        lines.append(line(experiment, x, [value.mean for _, value in track], name))
        if any(value.deviation for _, value in track):
            bands.append(_band(experiment, x, [value for _, value in track], name))
    log = min(ends) > 0 and max(ends) > _FAR * min(ends)
    starts = [track[0][0] for _, _, track in tracks]
    scale = _log(min(starts) / size, max(ends) / size) if log else {"rangemode": "tozero"}
    return figure(bands + lines, f"{axis} ({called})" if called else axis, "", xaxis=scale, hovermode="closest")


def _log(low: float, high: float) -> dict[str, Any]:
    """Return a logarithmic axis with labelled ticks at 1, 2 and 5 of every power; plotly would label bare digits."""
    if low <= 0:
        return {"type": "log"}
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
    return {"type": "log", "tickvals": ticks, "ticktext": [f"{tick:g}" for tick in ticks]}


def _band(experiment: Experiment, x: list[float], values: Sequence[Statistic], name: str) -> dict[str, Any]:
    """Return the area of one standard deviation around a line: forward along its top, back along its bottom."""
    above = [value.mean + (value.deviation or 0) for value in values]
    below = [value.mean - (value.deviation or 0) for value in values]
    return {
        "type": "scatter",
        "mode": "lines",
        "x": x + x[::-1],
        "y": above + below[::-1],
        "fill": "toself",
        "fillcolor": tint(experiment.number, 0.18),
        "line": {"width": 0},
        "hoverinfo": "skip",
        "name": label(experiment),
        "meta": mark(experiment, name),
    }


@panel("By round", "The mean over seeds after every evaluated round; the band is one standard deviation.")
def by_round(runs: Sequence[Run]) -> Figure | None:
    """Draw the measure against rounds."""
    return _curves(runs, lambda entry: entry.round, "round")


@panel("By data sent", "The same against bytes to and from all clients: further left is cheaper to transmit.")
def by_bytes(runs: Sequence[Run]) -> Figure | None:
    """Draw the measure against bytes."""
    return _curves(runs, lambda entry: entry.bytes, "data sent, both ways", BYTES)


@panel("By computation", "The same against multiply–accumulate operations that clients spent on training.")
def by_macs(runs: Sequence[Run]) -> Figure | None:
    """Draw the measure against MACs."""
    return _curves(runs, lambda entry: entry.client_macs, "client MACs", COUNTS)


@panel("By simulated time", "The same against the time the fleet would have taken, its slowest devices included.")
def by_time(runs: Sequence[Run]) -> Figure | None:
    """Draw the measure against simulated time, where there is a clock."""
    return _curves(runs, lambda entry: entry.simulated_seconds, "simulated seconds")
