"""Panels of the page: a registry that one decorated function adds to.

A panel takes all runs and returns what it shows: a figure of plotly.js (a dictionary with ``data`` and ``layout``, in
plain lists and numbers), a piece of HTML, or None where these runs have nothing to show, and then it is left out.
`experiments` groups the runs; what a method left in ``summary.json`` under ``panels`` is in ``run.panels``::

    @panel("How wide the networks were", "Units kept after every morph.", wide=True)
    def widths(runs):
        data = [
            line(experiment, rounds, units)
            for experiment in experiments(runs)
            if (found := experiment.runs[0].panels.get("morph"))
            for rounds, units in [(found["rounds"], found["units"])]
        ]
        return figure(data, "round", "units") if data else None

A trace or an element with the number of an experiment (`mark`; ``data-experiment`` in HTML) follows the legend. Colours
and fonts of axes come from the page, so figures set none. Escape what comes from files: `label` does, for both.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from nestling.report.experiment import Experiment
from nestling.report.read import Run

Figure = dict[str, Any]
Drawn = Figure | str | None
Draw = Callable[[Sequence[Run]], Drawn]

# Each has a contrast of at least 3 to 1 on the page, light and dark, and neighbours differ in lightness or hue.
COLOURS = ("#2f7ed8", "#d9730d", "#1f9d72", "#a35fe0", "#d64561", "#1796ad", "#9c7a12", "#cf4d9c", "#6b7f99", "#6f8f1f")
DASHES = ("solid", "dash", "dot", "dashdot")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star", "pentagon", "hexagon", "hourglass")


@dataclass(frozen=True)
class Panel:
    """A part of the page: its title, a sentence on how to read it, and what draws it."""

    title: str
    about: str
    draw: Draw
    wide: bool = False


PANELS: list[Panel] = []


def panel(title: str, about: str, wide: bool = False) -> Callable[[Draw], Draw]:
    """Return a decorator that adds a panel to the page, after those that are there.

    Parameters
    ----------
    title, about
        Its heading, and a sentence that says how to read it.
    wide
        Whether it takes the whole width of the page.

    Examples
    --------
    >>> @panel("Runs", "How many there are.")
    ... def count(runs):
    ...     return f"<p>{len(runs)}</p>"
    >>> PANELS.pop().title
    'Runs'
    """

    def add(draw: Draw) -> Draw:
        PANELS.append(Panel(title, about, draw, wide))
        return draw

    return add


def colour(number: int) -> str:
    """Return the colour of the experiment with this number."""
    return COLOURS[number % len(COLOURS)]


def tint(number: int, opacity: float) -> str:
    """Return the colour of an experiment, see-through.

    >>> tint(0, 0.2)
    'rgba(47, 126, 216, 0.2)'
    """
    plain = colour(number)
    red, green, blue = (int(plain[place : place + 2], 16) for place in (1, 3, 5))
    return f"rgba({red}, {green}, {blue}, {opacity})"


def label(experiment: Experiment) -> str:
    """Return the name of an experiment for HTML and for plotly, which reads some HTML too."""
    return html.escape(experiment.label)


def mark(experiment: Experiment, measure: str | None = None) -> dict[str, Any]:
    """Return what ties a trace to the legend and, where given, to a measure that can be chosen."""
    return {"experiment": experiment.number, "measure": measure}


def line(experiment: Experiment, x: Sequence[float], y: Sequence[float], measure: str | None = None) -> dict[str, Any]:
    """Return a line in the colour of an experiment; beyond ten experiments, colours come again with other dashes."""
    number = experiment.number
    return {
        "type": "scatter",
        "mode": "lines+markers" if len(x) <= 40 else "lines",
        "x": list(x),
        "y": list(y),
        "name": label(experiment),
        "line": {"color": colour(number), "width": 2.25, "dash": DASHES[number // len(COLOURS) % len(DASHES)]},
        "marker": {"symbol": SYMBOLS[number % len(SYMBOLS)], "size": 6},
        "meta": mark(experiment, measure),
    }


def figure(data: Sequence[dict[str, Any]], x: str, y: str, height: int | None = None, **layout: Any) -> Figure:
    """Return a figure with titles on its axes; `height` is the least it needs, `layout` goes to plotly as it is."""
    axes = {"xaxis": {"title": {"text": x}}, "yaxis": {"title": {"text": y}}}
    for name in axes:
        axes[name] |= layout.pop(name, {})
    return {"data": list(data), "layout": axes | layout} | ({"height": height} if height else {})
