"""Axes of a chart: where values lie, with lines and numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from docs.drawings.svg import Picture


@dataclass(frozen=True)
class Chart:
    """A rectangle of a picture with a horizontal and a vertical scale; `log` is for the horizontal one.

    >>> chart = Chart(0, 0, 100, 50, (1, 100), (0, 10), log=True)
    >>> chart.x(10), chart.y(10)
    (50.0, 0.0)
    """

    left: float
    top: float
    width: float
    height: float
    across: tuple[float, float]
    up: tuple[float, float]
    log: bool = False

    def x(self, value: float) -> float:
        """Return the place of a value on the horizontal scale."""
        low, high, value = (math.log(v) if self.log else v for v in (*self.across, value))
        return self.left + self.width * (value - low) / (high - low)

    def y(self, value: float) -> float:
        """Return the place of a value on the vertical scale."""
        low, high = self.up
        return self.top + self.height * (high - value) / (high - low)

    def draw(
        self,
        picture: Picture,
        titles: tuple[str, str],
        xs: Sequence[float],
        ys: Sequence[float],
        number: Callable[[float], str] = "{:g}".format,
    ) -> None:
        """Draw the grid, the numbers and the titles of both axes."""
        bottom = self.top + self.height
        for value in ys:
            picture.line([(self.left, self.y(value)), (self.left + self.width, self.y(value))])
            picture.text(self.left - 7, self.y(value) + 4, f"{value:g}", anchor="end", style="soft", size=12)
        for value in xs:
            picture.line([(self.x(value), bottom), (self.x(value), bottom + 4)])
            picture.text(self.x(value), bottom + 18, number(value), anchor="middle", style="soft", size=12)
        picture.text(self.left + self.width / 2, bottom + 38, titles[0], anchor="middle", style="soft")
        picture.turned(self.left - 38, self.top + self.height / 2, titles[1])
