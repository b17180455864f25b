"""A drawing of nested sub-models: their parameters as squares inside one another, and the units of every axis."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape

from nestling.amounts import amount

_SIDE, _BAR, _ROW = 260, 340, 17  # pixels: of the largest square, of a whole axis, of a row
_NAME, _UNITS = 190, 60  # pixels for the names and the sizes of axes
_MOST_AXES = 40
_SHADES = ("#d6e6f5", "#a9cbe8", "#74a9d8", "#3f82bf", "#1d5c98", "#0c3a66")  # the largest first
_FONT = "font-family='Helvetica, Arial, sans-serif'"


@dataclass(frozen=True)
class NestedAxis:
    """An axis: name, units, the units that every size keeps (the largest first), and why it is frozen, if it is."""

    name: str
    units: int
    kept: tuple[int, ...]
    frozen: str = ""


def draw_nested(title: str, sizes: Mapping[str, int], axes: list[NestedAxis]) -> str:
    """Return an SVG picture of nested sub-models.

    Parameters
    ----------
    title
        Its heading.
    sizes
        The parameters of every size by its name, the largest first.
    axes
        The axes; those after the first forty are only counted.

    Examples
    --------
    >>> picture = draw_nested("net", {"a": 100, "c": 7}, [NestedAxis("conv1", 8, (8, 2))])
    >>> picture.count("<rect"), "conv1" in picture
    (5, True)
    """
    shown = axes[:_MOST_AXES]
    left = _SIDE + 160
    width = left + _NAME + _BAR + _UNITS + 20
    height = max(_SIDE + 80, 64 + _ROW * (len(shown) + (len(axes) > len(shown)) + 1))
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' width='{width}' height='{height}' "
        f"{_FONT} font-size='11'>",
        "<rect width='100%' height='100%' fill='white'/>",
        f"<text x='{width / 2:g}' y='20' text-anchor='middle' font-size='14'>{escape(title)}</text>",
        "<text x='20' y='46' font-size='12'>parameters (areas)</text>",
        f"<text x='{left}' y='46' font-size='12'>units of axes</text>",
        *_squares(sizes),
        *(line for row, axis in enumerate(shown) for line in _axis(axis, left, 56 + _ROW * row)),
    ]
    if len(axes) > len(shown):
        y = 56 + _ROW * len(shown) + 12
        parts.append(f"<text x='{left}' y='{y}' fill='#555'>and {len(axes) - len(shown)} more axes</text>")
    return "\n".join([*parts, "</svg>", ""])


def _shade(number: int, count: int) -> str:
    return _SHADES[round(number * (len(_SHADES) - 1) / max(1, count - 1))]


def _squares(sizes: Mapping[str, int]) -> list[str]:
    """Return a square for every size, all with one corner in common, and their names beside them."""
    largest, bottom = max(sizes.values()), 56 + _SIDE
    parts = []
    for number, (name, parameters) in enumerate(sizes.items()):
        side = _SIDE * math.sqrt(parameters / largest)
        parts.append(
            f"<rect x='20' y='{bottom - side:.1f}' width='{side:.1f}' height='{side:.1f}' "
            f"fill='{_shade(number, len(sizes))}' stroke='white'/>"
        )
        y = 66 + 17 * number
        parts.append(f"<circle cx='{_SIDE + 34}' cy='{y - 4}' r='5' fill='{_shade(number, len(sizes))}'/>")
        parts.append(f"<text x='{_SIDE + 44}' y='{y}'>{escape(name)}: {escape(amount(parameters))}</text>")
    return parts


def _axis(axis: NestedAxis, left: int, y: int) -> list[str]:
    """Return a row: the name of an axis, bars of the units that every size keeps, and the number of units."""
    name = axis.name if len(axis.name) <= 30 else f"{axis.name[:12]}…{axis.name[-17:]}"
    parts = [f"<text x='{left}' y='{y + 11}'>{escape(name)}</text>"]
    start = left + _NAME
    if axis.frozen:
        why = axis.frozen if len(axis.frozen) <= 52 else f"{axis.frozen[:51]}…"
        parts.append(f"<rect x='{start}' y='{y + 2}' width='{_BAR}' height='{_ROW - 5}' fill='#eeeeee'/>")
        parts.append(f"<text x='{start + 4}' y='{y + 11}' font-size='9' fill='#555'>frozen: {escape(why)}</text>")
    for number, kept in enumerate(() if axis.frozen else axis.kept):
        parts.append(
            f"<rect x='{start}' y='{y + 2}' width='{_BAR * kept / axis.units:.1f}' height='{_ROW - 5}' "
            f"fill='{_shade(number, len(axis.kept))}'/>"
        )
    parts.append(f"<text x='{start + _BAR + 6}' y='{y + 11}' fill='#555'>{axis.units:,}</text>")
    return parts
