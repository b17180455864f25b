"""The figures of the page as files for papers, drawn by matplotlib from the same data."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, groupby
from pathlib import Path
from typing import Any, Literal

from nestling.amounts import BYTES, COUNTS, unit
from nestling.errors import ReportError, ReportFailed
from nestling.files import DISK_ERRORS, write_whole
from nestling.imported import need
from nestling.report.panels import Figure

Format = Literal["pdf", "svg", "png"]

_WIDTH, _HEIGHT = 4.6, 3.1  # inches: a column and a half of most papers
_LETTERS = 84  # of a line of the legend, the symbols among them
_ROW = 0.2  # inches of a row with a name
_DOTS = 300  # per inch, of PNG
_SYMBOLS = {"circle": "o", "square": "s", "diamond": "D", "triangle": "^"}
_MOST_SYMBOLS = 40
_STYLE = {
    "font.size": 8,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "legend.frameon": False,
    "lines.linewidth": 1.5,
    "lines.markersize": 4,
    "pdf.fonttype": 42,  # TrueType, which publishers ask for
    "svg.hashsalt": "nestling",  # the same bytes every time
}
_METADATA: dict[str, dict[str, Any]] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}

Looks = Mapping[int, Mapping[str, Any]]  # experiments by their number


def write_figures(data: Mapping[str, Any], folder: str | os.PathLike[str], kind: Format) -> list[Path]:
    """Write every figure of a page as a file; return their paths.

    Curves are written for every horizontal axis with the measure that runs are judged by, and for all other measures
    by round. Needs matplotlib, which ``pip install 'nestling[figures]'`` installs.

    Parameters
    ----------
    data
        What `nestling.report.page_data` returned.
    folder
        The folder to write to; it is created.
    kind
        The format of the files.
    """
    matplotlib = need("matplotlib", "figures", "figures for papers need", ReportError)
    need("matplotlib.figure", "figures", "figures for papers need", ReportError)
    place = Path(folder)
    looks = {experiment["number"]: experiment for experiment in data["experiments"]}
    paths = []
    try:
        place.mkdir(parents=True, exist_ok=True)
        with matplotlib.rc_context(_STYLE):
            for name, title, figure in _figures(data, looks):
                buffer = io.BytesIO()
                drawn = _drawn(matplotlib, title, figure, looks)
                drawn.savefig(buffer, format=kind, dpi=_DOTS, metadata=_METADATA[kind])
                paths.append(place / f"{name}.{kind}")
                write_whole(paths[-1], buffer.getvalue())
    except OSError as problem:
        error = ReportFailed if problem.errno in DISK_ERRORS else ReportError
        raise error(f"the figures cannot be written to {place}: {problem.strerror}") from None
    return paths


def _figures(data: Mapping[str, Any], looks: Looks) -> Iterator[tuple[str, str, Figure]]:
    """Yield the file name and the title of every figure; of lines, one for every choice that a reader has."""
    for panel in data["panels"]:
        for number, figure in enumerate(panel["figures"]):
            owner = looks.get(figure.get("experiment", -1))
            owners = [owner] if owner else [looks[one] for one in figure.get("experiments", ())]
            title = ": ".join(filter(None, [panel["title"], ", ".join(one["name"] for one in owners)]))
            name = _slug(f"{panel['name']}-{owner['label']}" if owner else panel["name"])
            name += f"-{number + 1}" if owner is None and number else ""
            if figure["kind"] != "lines" or len(figure["axes"]) * len(figure["measures"]) == 1:
                yield name, title, figure
                continue
            first, measure = figure["axes"][0], figure["measures"][0]
            pairs = [
                *((axis, measure) for axis in figure["axes"]),
                *((first, other) for other in figure["measures"][1:]),
            ]
            for axis, other in pairs:
                chosen = {**figure, "axes": [axis], "measures": [other]}
                yield f"{name}-{_slug(other['name'])}-by-{_slug(axis['name'])}", title, chosen


def _slug(text: str) -> str:
    """Return a text as a part of a file name.

    >>> _slug("Accuracy </against> size")
    'accuracy-against-size'
    """
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "figure"


def _drawn(matplotlib: Any, title: str, figure: Figure, looks: Looks) -> Any:
    rows = len(figure.get("rows", ()))
    tall = {
        "strips": _ROW * rows + 0.7,
        "bars": _ROW * rows + 0.9,
        "spread": 0.5 * rows + 0.7,
        "shares": 0.3 * rows + 0.9,
    }
    height = max(1.4, tall.get(figure["kind"], _HEIGHT))
    drawing = matplotlib.figure.Figure(figsize=(_WIDTH, height), layout="constrained")
    axes = drawing.subplots()
    axes.set_title(_plain(title), loc="left")
    _DRAW[figure["kind"]](axes, figure, looks)
    handles, names = axes.get_legend_handles_labels()
    if len(names) > 1 or (names and "experiment" not in figure and len(looks) > 1):
        across = max(1, min(3, len(names), _LETTERS // (max(map(len, names)) + 8)))
        drawing.legend(handles, names, loc="outside lower center", ncols=across)
    return drawing


def _plain(text: str) -> str:
    """Return a text that matplotlib shows as it is: ``$`` would begin a formula."""
    return text.replace("$", r"\$")


def _mixed(colour: str, share: float) -> tuple[float, ...]:
    """Return a colour mixed with white.

    >>> _mixed("#ff0000", 0.5)
    (1.0, 0.5, 0.5)
    """
    return tuple(1 - share + share * int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))


def _scale(axis: Mapping[str, Any], values: Sequence[float | None]) -> tuple[float, str]:
    """Return the size of the unit in which an axis is written, and the title with that unit."""
    largest = max((abs(value) for value in values if value is not None), default=1.0)
    if axis["unit"] == "percent":
        size, name = 0.01, "%"
    elif axis["unit"] == "bytes":
        size, name = unit(largest, BYTES)
    elif axis["unit"] == "macs":
        size, name = unit(largest, COUNTS)
        name += "MACs"
    elif axis["unit"] == "seconds":
        size, name = next(
            ((size, name) for size, name in ((3600, "h"), (60, "min")) if largest >= 1.5 * size), (1, "s")
        )
    else:
        size, name = 1, ""
    better = ", lower is better" if axis["better"] < 0 else ""
    return size, _plain(f"{axis['title']}{f' ({name})' if name else ''}{better}")


def _lines(axes: Any, figure: Figure, looks: Looks) -> None:
    x_axis, y_axis = figure["axes"][0], figure["measures"][0]
    x_name, y_name = x_axis["name"], y_axis["name"]
    kept = [series for series in figure["series"] if any(y is not None for y in series["y"].get(y_name, ()))]
    x_size, x_title = _scale(x_axis, list(chain.from_iterable(series["x"][x_name] for series in kept)))
    y_size, y_title = _scale(y_axis, list(chain.from_iterable(series["y"][y_name] for series in kept)))
    for series in kept:
        look = looks[series["experiment"]]
        deviations = series.get("deviation", {}).get(y_name) or [None] * len(series["y"][y_name])
        points = [
            (x / x_size if x is not None else nan, y / y_size if y is not None else nan, (spread or 0) / y_size)
            for x, y, spread in zip(series["x"][x_name], series["y"][y_name], deviations, strict=True)
            for nan in [float("nan")]
        ]
        xs, ys, spreads = (list(column) for column in zip(*points, strict=True))
        colour = _mixed(look["colour"], series.get("shade", 1))
        style = {
            "color": colour,
            "linestyle": "--" if look["hollow"] else "-",
            "marker": _SYMBOLS[look["symbol"]] if len(xs) <= _MOST_SYMBOLS else None,
            "markerfacecolor": "white" if look["hollow"] else colour,
            "label": _plain(series.get("name") or look["name"]),
        }
        if figure.get("errors") and any(spreads):
            axes.errorbar(xs, ys, yerr=spreads, capsize=2, elinewidth=0.8, **style)
        else:
            axes.plot(xs, ys, **style)
            if any(spreads):
                low, high = ([y + way * spread for y, spread in zip(ys, spreads, strict=True)] for way in (-1, 1))
                axes.fill_between(xs, low, high, color=colour, alpha=0.15, linewidth=0)
        if figure.get("guides") and len(xs) == 1:
            axes.axhline(ys[0], color=colour, linestyle=":", linewidth=0.9)
    if x_axis["log"]:
        axes.set_xscale("log")
    elif x_name == "round" or figure.get("names"):
        axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel(x_title)
    axes.set_ylabel(y_title)


def _strips(axes: Any, figure: Figure, looks: Looks) -> None:
    colour = looks[figure["experiment"]]["colour"]
    for number, row in enumerate(figure["rows"]):
        start = 0
        for shade, same in groupby(row["shades"]):
            width = len(list(same))
            axes.barh(number, width, left=start, height=0.75, color=_mixed(colour, int(shade, 36) / 35), linewidth=0)
            start += width
    _name_rows(axes, [row["name"] for row in figure["rows"]])
    axes.set_xticks([0, start], ["first unit", "last unit"])
    axes.grid(visible=False)


def _bars(axes: Any, figure: Figure, looks: Looks) -> None:
    colour, groups = looks[figure["experiment"]]["colour"], figure["groups"]
    for place, name in enumerate(groups):
        at = [number + 0.38 * (place - (len(groups) - 1) / 2) for number in range(len(figure["rows"]))]
        values = [100 * (row["values"][place] or 0) for row in figure["rows"]]
        axes.barh(at, values, height=0.36, color=_mixed(colour, 1 if place == len(groups) - 1 else 0.38), label=name)
    _name_rows(axes, [row["name"] for row in figure["rows"]])
    axes.set_xlabel(f"{figure['title']} (%)")
    axes.grid(visible=False, axis="y")


def _spread(axes: Any, figure: Figure, looks: Looks) -> None:
    low, high = 100 * figure["low"], 100 * figure["high"]
    for number, row in enumerate(figure["rows"]):
        look, step = looks[row["experiment"]], (high - low) / len(row["bins"])
        at = [low + (place + 0.5) * step for place in range(len(row["bins"]))]
        heights = [-0.8 * count / max(row["bins"]) for count in row["bins"]]  # the axis points down
        axes.bar(at, heights, bottom=number + 0.4, width=0.9 * step, color=look["colour"])
        axes.plot([100 * row["mean"]] * 2, [number + 0.4, number - 0.45], color="black", linewidth=1)
    _name_rows(axes, [looks[row["experiment"]]["name"] for row in figure["rows"]])
    axes.set_xlim(low, high)
    axes.set_xlabel(f"{figure['title']} (%)")
    axes.grid(visible=False, axis="y")


def _shares(axes: Any, figure: Figure, looks: Looks) -> None:
    for number, row in enumerate(figure["rows"]):
        total, start = sum(part["count"] for part in row["parts"]), 0.0
        for place, part in enumerate(row["parts"]):
            width = 100 * part["count"] / total
            shade = 1 - 0.72 * place / max(1, len(row["parts"]) - 1)
            axes.barh(
                number, width, left=start, color=_mixed(looks[row["experiment"]]["colour"], shade), edgecolor="white"
            )
            if width > 8:
                text = _plain(part["name"].removeprefix("level "))
                ink = "white" if shade > 0.62 else "black"
                axes.text(start + width / 2, number, text, ha="center", va="center", fontsize=6, color=ink)
            start += width
    _name_rows(axes, [looks[row["experiment"]]["name"] for row in figure["rows"]])
    axes.set_xlabel("share of all trainings (%)")
    axes.grid(visible=False)


def _nested(axes: Any, figure: Figure, looks: Looks) -> None:
    largest = figure["sizes"][0]["parameters"]
    for place, size in enumerate(figure["sizes"]):
        side = (size["parameters"] / largest) ** 0.5
        shade = 0.16 + 0.84 * place / max(1, len(figure["sizes"]) - 1)
        label = _plain(f"level {size['name']}: {size['parameters']:,} parameters")
        axes.fill([0, side, side, 0], [0, 0, side, side], color=_mixed("#1f6feb", shade), linewidth=0, label=label)
    axes.set_aspect("equal")
    axes.axis("off")


def _name_rows(axes: Any, names: Sequence[str]) -> None:
    """Label rows from the top."""
    axes.set_yticks(range(len(names)), [_plain(name) for name in names])
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)


_DRAW = {"lines": _lines, "strips": _strips, "bars": _bars, "spread": _spread, "shares": _shares, "nested": _nested}
