"""The picture of the grand comparison: the accuracy of every sub-model against its size, a line for every method."""

from __future__ import annotations

import math
import statistics
from pathlib import Path

from docs.drawings.chart import Chart
from docs.drawings.svg import Picture
from nestling.experiment.presets.grand import METHODS
from nestling.experiment.reproductions.finished_runs import read_results
from nestling.report.legend import METHODS as NAMES
from nestling.report.legend import Style, styles

RESULTS = Path(__file__).parents[1] / "results" / "grand-comparison.json"
_TICKS = 4  # between numbers on the horizontal axis, at least

Points = list[tuple[float, float]]  # parameters of a sub-model and its accuracy in percent, the smallest first


def read_points(path: Path) -> dict[str, Points]:
    """Return method → its points, as means over the seeds that are finished; methods without a run are left out."""
    points: dict[str, Points] = {}
    finished = read_results(path).values()
    for method in METHODS:
        runs = [run.submodels for run in finished if run.preset == f"{method}-cifar10-grand-evening"]
        means = [
            (parameters, 100 * statistics.mean(values))
            for level, (parameters, _) in (runs[0] if runs else {}).items()
            if len(values := [value for run in runs if (value := run[level][1]) is not None]) == len(runs)
        ]
        if means:
            points[method] = sorted(means)
    return points


def grand_comparison(path: Path = RESULTS) -> str:
    """Return the picture of the runs that are finished; it says how many methods are missing."""
    points = read_points(path)
    picture = Picture(900, 440, "Accuracy of every sub-model against its size, for methods with one budget")
    missing = len(METHODS) - len(points)
    title = "CIFAR-10, devices of five sizes, 22 T multiply-accumulates on clients for every method"
    picture.text(70, 34, f"{title}{f' ({missing} of {len(METHODS)} methods to come)' if missing else ''}", bold=True)
    values = [value for line in points.values() for _, value in line]
    low, high = 10 * math.floor(min(values) / 10), 10 * math.ceil(max(values) / 10)
    largest = max(parameters for line in points.values() for parameters, _ in line)
    step = 10 ** math.floor(math.log10(largest / _TICKS))
    step *= next(factor for factor in (5, 2, 1) if largest / (factor * step) >= _TICKS)
    chart = Chart(70, 60, 560, 310, (0, 1.04 * largest), (low, high))
    ticks = [step * number for number in range(int(1.04 * largest / step) + 1)]
    rows = range(low, high + 1, 10 if high - low > 20 else 5)
    chart.draw(picture, ("parameters of the sub-model", "test accuracy, %"), ticks, rows, _thousands)
    looks = dict(zip(METHODS, styles(METHODS), strict=True))
    order = sorted(points, key=lambda method: -points[method][-1][1])  # as the lines end on the right
    for method in reversed(order):
        places = [(chart.x(parameters), chart.y(value)) for parameters, value in points[method]]
        colour, dash = looks[method].colour, _dash(looks[method].hollow)
        if len(places) > 1:
            picture.line(places, colour, 2.5, dash)
        for place in places:
            _point(picture, place, looks[method], single=len(places) == 1)
    for number, method in enumerate(order):
        y, single = 72 + 24 * number, len(points[method]) == 1
        picture.line(
            [(650, y - 4), (676, y - 4)], looks[method].colour, 0 if single else 2.5, _dash(looks[method].hollow)
        )
        _point(picture, (663, y - 4), looks[method], single=single)
        picture.text(686, y, f"{NAMES[method]} {points[method][-1][1]:.1f} %")
    picture.text(650, 72 + 24 * len(order) + 8, "figures: the largest size of each method;", style="soft", size=12)
    picture.text(650, 72 + 24 * len(order) + 24, "a large point: one size for all devices", style="soft", size=12)
    return picture.svg()


def _thousands(value: float) -> str:
    return f"{value / 1000:g} k" if value else "0"


def _point(picture: Picture, place: tuple[float, float], look: Style, *, single: bool) -> None:
    """Draw a point: large for a method with one size; with a hole where another method has its colour."""
    picture.circle(*place, 6.5 if single else 4.5, look.colour)
    if look.hollow:
        picture.circle(*place, 2, "#ffffff")


def _dash(hollow: bool) -> str:
    return "5 4" if hollow else ""
