"""The registry of the page's panels; a decorated function adds one.

A panel takes all runs and returns a figure of plotly.js (a dictionary with ``data`` and ``layout``, in plain lists and
numbers), a piece of HTML, or None if these runs have nothing to show. `experiments` groups the runs; ``run.panels``
holds what a method wrote to ``summary.json`` under ``panels``::

    @panel("How wide the networks were", "Units kept after every morph.", wide=True)
    def widths(runs):
        data = [
            line(experiment, rounds, units)
            for experiment in experiments(runs)
            if (morph := experiment.runs[0].panels.get("morph"))
            for rounds, units in [(morph["rounds"], morph["units"])]
        ]
        return figure(data, "round", "units") if data else None

The legend hides and shows traces and elements that carry the number of an experiment (`mark`; ``data-experiment`` in
HTML). The page sets the colours and fonts of axes. Escape texts that come from files, as `label` does.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from nestling.report.read import Run
from nestling.report.runs_by_seed import Experiment

Figure = dict[str, Any]
Drawn = Figure | str | None
Draw = Callable[[Sequence[Run]], Drawn]

# Each has a contrast of at least 3 to 1 on the light and the dark page, and neighbours differ in lightness or hue.
COLOURS = ("#2f7ed8", "#d9730d", "#1f9d72", "#a35fe0", "#d64561", "#1796ad", "#9c7a12", "#cf4d9c", "#6b7f99", "#6f8f1f")
DASHES = ("solid", "dash", "dot", "dashdot")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star", "pentagon", "hexagon", "hourglass")


@dataclass(frozen=True)
class Panel:
    """A part of the page: its title, a sentence on how to read it, and the function that draws it."""

    title: str
    about: str
    draw: Draw
    wide: bool = False


PANELS: list[Panel] = []


def panel(title: str, about: str, wide: bool = False) -> Callable[[Draw], Draw]:
    """Return a decorator that adds a panel at the end of the page.

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
    """Return the colour of an experiment with some opacity.

    >>> tint(0, 0.2)
    'rgba(47, 126, 216, 0.2)'
    """
    plain = colour(number)
    red, green, blue = (int(plain[place : place + 2], 16) for place in (1, 3, 5))
    return f"rgba({red}, {green}, {blue}, {opacity})"


def label(experiment: Experiment) -> str:
    """Return the name of an experiment, escaped for HTML and for plotly, which interprets some HTML, too."""
    return html.escape(experiment.label)


def mark(experiment: Experiment, measure: str | None = None) -> dict[str, Any]:
    """Return the metadata that ties a trace to the legend and, if given, to a selectable measure."""
    return {"experiment": experiment.number, "measure": measure}


def line(experiment: Experiment, x: Sequence[float], y: Sequence[float], measure: str | None = None) -> dict[str, Any]:
    """Return a line in the colour of an experiment; beyond ten experiments, colours repeat with other dashes."""
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
    """Return a figure with titled axes and a minimum height; `layout` is passed on to plotly."""
    axes = {"xaxis": {"title": {"text": x}}, "yaxis": {"title": {"text": y}}}
    for name in axes:
        axes[name] |= layout.pop(name, {})
    return {"data": list(data), "layout": axes | layout} | ({"height": height} if height else {})
