"""Small plots as SVG, without any library: panels with axes, lines, points with error bars, and a legend."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from nestling.report.legend import COLOURS

_WIDTH, _HEIGHT = 400, 300  # of a panel
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 16, 30, 44
_ACROSS = 3  # panels beside each other
_LETTER = 6.2  # the width of a letter in a legend, on the average
_TITLE_LETTER = 7.6  # and in the title
_FONT = "font-family='Helvetica, Arial, sans-serif'"


@dataclass(frozen=True)
class Series:
    """Points of one colour: places, values and their deviations, joined by a line or not.

    `hollow` points are the paper's. Series with the same name share an entry of the legend.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    deviations: Sequence[float | None] = ()
    colour: int = 0
    line: bool = False
    hollow: bool = False
    texts: Sequence[str] = ()


@dataclass(frozen=True)
class Plot:
    """A panel: its title, its axes, and what is drawn. With `names`, the y axis has these instead of numbers."""

    title: str
    x_title: str
    y_title: str
    series: Sequence[Series]
    log_x: bool = False
    names: Sequence[str] = ()
    points: bool = True


def draw(title: str, plots: Sequence[Plot]) -> str:
    """Return panels as one SVG picture, with a legend below."""
    across = min(_ACROSS, max(1, len(plots)))
    indent = max((_indent(plot) for plot in plots), default=_LEFT)
    width = across * (_WIDTH + indent - _LEFT)
    height = max((_height(plot) for plot in plots), default=_HEIGHT)
    down = math.ceil(len(plots) / across) * height
    lines = textwrap.wrap(title, int((width - 20) / _TITLE_LETTER))
    top = 12 + 18 * len(lines)
    legend, legend_height = _legend(plots, width, top + down)
    panels = [
        f"<g transform='translate({(number % across) * (_WIDTH + indent - _LEFT)} {top + number // across * height})'>"
        f"{_panel(plot, indent, height)}</g>"
        for number, plot in enumerate(plots)
    ]
    whole = top + down + legend_height
    heading = "".join(
        f"<text x='{width / 2:g}' y='{20 + 18 * number}' text-anchor='middle' font-size='14'>{escape(line)}</text>\n"
        for number, line in enumerate(lines)
    )
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {whole}' width='{width}' height='{whole}' "
        f"{_FONT} font-size='11'>\n<rect width='100%' height='100%' fill='white'/>\n"
        + heading
        + "\n".join([*panels, legend])
        + "\n</svg>\n"
    )


def _indent(plot: Plot) -> int:
    longest = max(map(len, plot.names), default=0)
    return max(_LEFT, round(longest * _LETTER) + 14)


def _height(plot: Plot) -> int:
    return max(_HEIGHT, _TOP + _BOTTOM + 17 * len(plot.names))


def _panel(plot: Plot, indent: int, height: int) -> str:
    right, bottom = _WIDTH + indent - _LEFT - _RIGHT, height - _BOTTOM
    xs = [x for series in plot.series for x in series.x]
    ys = [
        y + sign * (deviation or 0)
        for series in plot.series
        for y, deviation in zip(series.y, series.deviations or [None] * len(series.y), strict=True)
        for sign in (-1, 1)
    ]
    if not xs:
        nothing = "nothing is measured yet"
        return (
            f"<text x='{(indent + right) / 2:g}' y='{height / 2:g}' text-anchor='middle' fill='#777'>{nothing}</text>"
        )
    if plot.names:  # rows from above, values along x
        xs, ys = ys, [-0.5, len(plot.names) - 0.5]
    x_low, x_high, x_ticks = _scale(min(xs), max(xs), plot.log_x)
    y_low, y_high, y_ticks = (-0.5, len(plot.names) - 0.5, []) if plot.names else _scale(min(ys), max(ys), False)

    def place(x: float, y: float) -> tuple[float, float]:
        across = (math.log(x / x_low) / math.log(x_high / x_low)) if plot.log_x else (x - x_low) / (x_high - x_low)
        up = (y - y_low) / (y_high - y_low)
        y_place = _TOP + up * (bottom - _TOP) if plot.names else bottom - up * (bottom - _TOP)
        return indent + across * (right - indent), y_place

    middle = f"{(indent + right) / 2:g}"
    parts = [
        f"<text x='{middle}' y='{_TOP - 10}' text-anchor='middle' font-size='12'>{escape(plot.title)}</text>",
        f"<text x='{middle}' y='{bottom + 33}' text-anchor='middle'>{escape(plot.x_title)}</text>",
    ]
    for tick in x_ticks:
        x, _ = place(tick, y_low)
        parts.append(f"<line x1='{x:.1f}' y1='{_TOP}' x2='{x:.1f}' y2='{bottom}' stroke='#e4e4e4'/>")
        parts.append(f"<text x='{x:.1f}' y='{bottom + 15}' text-anchor='middle'>{_number(tick)}</text>")
    for tick in y_ticks:
        _, y = place(x_low, tick)
        parts.append(f"<line x1='{indent}' y1='{y:.1f}' x2='{right}' y2='{y:.1f}' stroke='#e4e4e4'/>")
        parts.append(f"<text x='{indent - 6}' y='{y + 4:.1f}' text-anchor='end'>{_number(tick)}</text>")
    for number, name in enumerate(plot.names):
        _, y = place(x_low, number)
        parts.append(f"<text x='{indent - 6}' y='{y + 4:.1f}' text-anchor='end'>{escape(name)}</text>")
    parts.append(
        f"<rect x='{indent}' y='{_TOP}' width='{right - indent}' height='{bottom - _TOP}' fill='none' stroke='#999'/>"
    )
    if plot.y_title:
        half = (_TOP + bottom) / 2
        parts.append(
            f"<text transform='translate(14 {half:g}) rotate(-90)' text-anchor='middle'>{escape(plot.y_title)}</text>"
        )
    for series in plot.series:
        parts += _series(plot, series, place)
    return "".join(parts)


def _series(plot: Plot, series: Series, place: Callable[[float, float], tuple[float, float]]) -> list[str]:
    colour = COLOURS[series.colour % len(COLOURS)]
    deviations = series.deviations or [None] * len(series.y)
    pairs = list(zip(series.y, series.x, strict=True)) if plot.names else list(zip(series.x, series.y, strict=True))
    spots = [place(x, y) for x, y in pairs]
    parts = []
    if series.line and len(spots) > 1:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
        dash = " stroke-dasharray='5 3'" if _hollow(series) else ""
        parts.append(f"<polyline points='{path}' fill='none' stroke='{colour}' stroke-width='1.6'{dash}/>")
    for (x, y), (along, value), deviation in zip(spots, pairs, deviations, strict=True):
        if deviation:
            ends = (
                [(along - deviation, value), (along + deviation, value)]
                if plot.names
                else [(along, value - deviation), (along, value + deviation)]
            )
            (x1, y1), (x2, y2) = (place(*end) for end in ends)
            parts.append(f"<line x1='{x1:.1f}' y1='{y1:.1f}' x2='{x2:.1f}' y2='{y2:.1f}' stroke='{colour}'/>")
        if plot.points:
            fill = "white" if _hollow(series) else colour
            parts.append(
                f"<circle cx='{x:.1f}' cy='{y:.1f}' r='3.4' fill='{fill}' stroke='{colour}' stroke-width='1.4'/>"
            )
    for (x, y), text in zip(spots, series.texts, strict=False):
        shift, anchor = (-5, "end") if x > 0.65 * _WIDTH else (5, "start")  # inside of the panel
        parts.append(
            f"<text x='{x + shift:.1f}' y='{y - 5:.1f}' font-size='9' fill='#555' text-anchor='{anchor}'>"
            f"{escape(text)}</text>"
        )
    return parts


def _hollow(series: Series) -> bool:
    """Return whether points are hollow and lines dashed: the paper's, and series that repeat a colour."""
    return series.hollow or series.colour >= len(COLOURS)


def _legend(plots: Sequence[Plot], width: float, top: float) -> tuple[str, float]:
    entries = {
        (series.name, series.colour, _hollow(series)): None for plot in plots for series in plot.series if series.x
    }
    parts, x, y = [], 16.0, top + 8
    for name, number, hollow in entries:
        size = 24 + _LETTER * len(name)
        if x + size > width and x > 16:
            x, y = 16.0, y + 17
        colour = COLOURS[number % len(COLOURS)]
        fill = "white" if hollow else colour
        parts.append(
            f"<circle cx='{x:.1f}' cy='{y - 4:.1f}' r='4' fill='{fill}' stroke='{colour}' stroke-width='1.4'/>"
        )
        parts.append(f"<text x='{x + 9:.1f}' y='{y:.1f}'>{escape(name)}</text>")
        x += size
    return "".join(parts), y - top + 10


def _scale(low: float, high: float, log: bool) -> tuple[float, float, list[float]]:
    """Return the ends of an axis with a margin, and its ticks at round numbers."""
    if log:
        low, high = low / 1.3, high * 1.3
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        ticks = [10.0**power * digit for power in powers for digit in (1, 2, 5)]
        inside = [tick for tick in ticks if low <= tick <= high]
        return low, high, inside if len(inside) <= 7 else [tick for tick in inside if f"{tick:e}"[0] == "1"]
    margin = (high - low) * 0.06 or abs(high) * 0.06 or 1.0
    low, high = low - margin, high + margin
    raw = (high - low) / 5
    size = 10 ** math.floor(math.log10(raw))
    step = next(size * digit for digit in (1, 2, 5, 10) if size * digit >= raw)
    first = math.ceil(low / step)
    return low, high, [step * number for number in range(first, math.floor(high / step) + 1)]


def _number(value: float) -> str:
    """Return the label of a tick.

    >>> _number(2_000_000), _number(0.95), _number(0.30000000000000004)
    ('2M', '0.95', '0.3')
    """
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if abs(value) >= size:
            return f"{value / size:.6g}{letter}"
    return f"{value:.6g}"
