"""The registry of the page's panels; a decorated function adds one.

A panel takes the experiments and returns a figure, a list of figures (often one per experiment), or None if there is
nothing to show. A figure is a plain dictionary: the page's script and `nestling report --figures` both draw it.
``run.panels`` holds what a method wrote to ``summary.json`` under ``panels``::

    @panel("How wide the networks were", "Units kept after every morph.")
    def widths(groups):
        data = [
            {"experiment": group.number, "x": {"round": morph["rounds"]}, "y": {"units": morph["units"]}}
            for group in groups
            if (morph := group.runs[0].panels.get("morph"))
        ]
        return lines([axis("round", "round")], [axis("units", "units kept")], data) if data else None

Kinds of figures, and what they hold beside ``kind`` and, if they are about one experiment, ``experiment``:

=========  =============================================================================================================
lines      ``axes``, ``measures`` (the reader chooses one of each), ``series`` (see `lines`)
strips     ``rows``: name, units, ``even`` (least over most), ``shades``: a digit from 0 to z per part
bars       ``groups`` (names) and ``rows``: name, ``values`` (shares, one per group)
spread     ``unit``, ``low``, ``high`` and ``rows``: experiment, ``bins`` (counts), mean, quantiles, count
shares     ``rows``: experiment, ``parts``: name and count
nested     ``sizes``, the largest first: name, parameters, bytes, macs, and the numbers of the experiments that use them
columns    ``axes`` and ``measures`` (one each), ``bars``: pairs of a place and a height, and ``width``
map        ``axes`` and ``measures`` (one each), ``values``: a list of rows
=========  =============================================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from nestling.report.runs_by_seed import Experiment

Figure = dict[str, Any]
Drawn = Figure | list[Figure] | None
Draw = Callable[[Sequence[Experiment]], Drawn]
Section = Literal["first", "curves", "overview", "details"]
Unit = Literal["number", "percent", "count", "bytes", "macs", "seconds"]


@dataclass(frozen=True)
class Panel:
    """A part of the page: its title, a sentence on how to read it, the function that draws it, and its section.

    Details can be folded; the other sections are always visible.
    """

    title: str
    about: str
    draw: Draw
    section: Section = "details"

    @property
    def name(self) -> str:
        """The title as a part of file names and of links."""
        return "".join(sign if sign.isalnum() else "-" for sign in self.title.lower())


PANELS: list[Panel] = []


def panel(title: str, about: str, section: Section = "details") -> Callable[[Draw], Draw]:
    """Return a decorator that adds a panel at the end of its section.

    Parameters
    ----------
    title, about
        Its heading, and a sentence that says how to read it.
    section
        Where on the page it is.

    Examples
    --------
    >>> @panel("Seeds", "How many runs an experiment has.", section="overview")
    ... def seeds(groups):
    ...     data = [{"x": {"number": [group.number]}, "y": {"seeds": [len(group.runs)]}} for group in groups]
    ...     return lines([axis("number", "experiment")], [axis("seeds", "seeds")], data)
    >>> PANELS.pop().name
    'seeds'
    """

    def add(draw: Draw) -> Draw:
        PANELS.append(Panel(title, about, draw, section))
        return draw

    return add


def axis(name: str, title: str, unit: Unit = "number", *, log: bool = False, better: int = 0) -> dict[str, Any]:
    """Return an axis: its name in series, its title, the unit of its values, and which direction is better."""
    return {"name": name, "title": title, "unit": unit, "log": log, "better": better}


def lines(
    axes: Sequence[Mapping[str, Any]],
    measures: Sequence[Mapping[str, Any]],
    series: Sequence[Mapping[str, Any]],
    **more: Any,
) -> Figure:
    """Return a figure of lines.

    Parameters
    ----------
    axes, measures
        What a reader can choose for x and for y, from `axis`.
    series
        The lines. ``x`` and ``y`` map the name of an axis or a measure to values, None where there is none; so does
        ``deviation``, which is optional. ``experiment`` is the number of the experiment, whose colour and name the
        line gets; ``name`` tells lines of one experiment apart, ``shade`` in (0, 1] makes them paler, and ``texts``
        belong to points.
    more
        ``guides``: single points get a line across. ``errors``: deviations are drawn as bars, not as bands.
        ``experiment``: the only one that the figure is about. ``names``: what the values of x stand for.
    """
    return {"kind": "lines", "axes": list(axes), "measures": list(measures), "series": list(series), **more}


def short(value: float | None) -> float | None:
    """Return a number with six significant digits, which is finer than a screen shows, to keep pages small.

    >>> short(0.123456789), short(1234567.0), short(None)
    (0.123457, 1234570.0, None)
    """
    return None if value is None else float(f"{value:.6g}")
