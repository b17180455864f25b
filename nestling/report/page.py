"""The HTML page about some runs: one self-contained file that needs no network."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from nestling.amounts import BYTES, amount
from nestling.errors import ReportError
from nestling.files import write_whole
from nestling.imported import need
from nestling.report import curves, morphs, spread, submodel_panel
from nestling.report.headline import headline
from nestling.report.measures import duration, written
from nestling.report.panels import COLOURS, PANELS, Figure, colour, label
from nestling.report.read import Run
from nestling.report.runs_by_seed import Experiment, experiments
from nestling.report.table import NOTE, Row, columns, compare

__all__ = ["card", "document", "html", "save", "write"]

_ALL = (curves, spread, submodel_panel, morphs)  # importing them registers their panels, in this order

Measures = dict[str, dict[str, str | bool]]  # name → its title, and whether it is a share

# The page may load nothing, whatever the files of a run contain; its own scripts and styles are inline.
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


def write(runs: Sequence[Run], path: str | os.PathLike[str]) -> Path:
    """Write the page about `runs` to `path`.

    Needs plotly, which ``pip install 'nestling[report]'`` installs.

    >>> write([], "report.html")
    Traceback (most recent call last):
    nestling.errors.ReportError: there are no runs to report on
    """
    return save(html(runs), path)


def save(page: str, path: str | os.PathLike[str]) -> Path:
    """Write a page so that a crash leaves either the old file or the new one, complete; return its path."""
    target = Path(path)
    try:
        write_whole(target, page.encode())
    except OSError as problem:
        raise ReportError(f"the page cannot be written to {target}: {problem.strerror}") from None
    return target


def html(runs: Sequence[Run]) -> str:
    """Return the page about `runs` as text."""
    if not runs:
        raise ReportError("there are no runs to report on")
    groups, rows = experiments(runs), compare(runs)
    heading, sentences = headline(rows)
    figures: list[Figure] = []
    hint = "The numbers are in the table above."
    parts = [card(panel.title, panel.about, panel.draw(runs), figures, panel.wide, hint=hint) for panel in PANELS]
    measures = curves.chosen(runs)
    count = f"{len(groups)} experiment{'s' * (len(groups) > 1)}, {len(runs)} run{'s' * (len(runs) > 1)}"
    main = f"""{_tiles(rows, groups)}
{_controls(groups, measures)}
<section class="card" aria-labelledby="table"><h3 id="table">Comparison</h3>{_table(rows, groups)}</section>
<noscript><p class="note">The figures below need JavaScript, which is inside this page.</p></noscript>
<div class="grid">{"".join(parts)}</div>
<h2>Runs</h2>
<p class="about">The settings of each run, and the command that repeats it.</p>
{"".join(map(_details, groups))}"""
    return document(heading, f"Nestling report · {count}", sentences, main, figures=figures, measures=measures)


def document(
    heading: str,
    kicker: str,
    sentences: Sequence[str],
    main: str,
    *,
    figures: Sequence[Figure],
    measures: Measures | None = None,
) -> str:
    """Return a whole page: a heading with a line above it and sentences below, HTML, and the figures in it."""
    plotly = need("plotly.offline", "report", "the page needs", ReportError).get_plotlyjs()
    script = _script({"figures": figures, "measures": measures or {}})
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(heading)} – Nestling</title>
<link rel="icon" href="data:,">
<style>{_file("page.css")}</style>
</head>
<body>
<header class="top">
<p class="kicker">{kicker}</p>
<h1>{escape(heading)}</h1>
{"".join(f'<p class="lead">{escape(sentence)}</p>' for sentence in sentences)}
</header>
<main>
{main}
</main>
<footer>A single file, written by Nestling; it loads nothing from the network.</footer>
<script type="application/json" id="figures">{script}</script>
<script>{plotly}</script>
<script>{_file("page.js")}</script>
</body>
</html>
"""


def _file(name: str) -> str:
    return resources.files("nestling.report").joinpath(name).read_text(encoding="utf-8")


def _script(value: Any) -> str:
    r"""Return JSON for use inside a script element: nothing in it can end the script or begin a comment.

    >>> print(_script("</script>"))
    "\u003c/script>"
    """
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def card(
    title: str, about: str, drawn: Figure | str | None, figures: list[Figure], wide: bool = False, *, hint: str = ""
) -> str:
    """Return a panel as HTML, or "" if it shows nothing; a figure is added to `figures`, for the page's script."""
    if drawn is None:
        return ""
    frame = f'<section class="card{" wide" * wide}"><h3>{escape(title)}</h3><p class="about">{escape(about)}</p>'
    if isinstance(drawn, str):
        return f"{frame}{drawn}</section>"
    height = f' style="--height: {drawn["height"]}px"' if "height" in drawn else ""
    figures.append(drawn)
    label = escape(f"{title}: {about} {hint}".strip())
    return (
        f'{frame}<div class="plot" data-figure="{len(figures) - 1}" role="img" aria-label="{label}"{height}></div>'
        "</section>"
    )


def _named(experiment: Experiment) -> str:
    again = " again" * (experiment.number >= len(COLOURS))  # a ring, as another experiment has the same colour
    return f'<span class="named{again}" style="--own: {colour(experiment.number)}">{label(experiment)}</span>'


def _tiles(rows: Sequence[Row], groups: Sequence[Experiment]) -> str:
    """Return the best values as tiles, if all experiments use the same data: others are not comparable."""
    finished = [(row, experiment) for row, experiment in zip(rows, groups, strict=True) if row["finished"]]
    if len({(row["dataset"], row["partition"]) for row, _ in finished}) != 1:
        return ""
    tiles = []
    records: tuple[tuple[str, Callable[[Row], Any], int, Callable[[float], str]], ...] = (
        ("Highest final accuracy", lambda row: row["final"].get("global_accuracy"), 1, _accuracy),
        ("Highest for the worst sub-model", _worst_accuracy, 1, _accuracy),
        ("Least data sent", lambda row: row["bytes"], -1, lambda value: amount(value, BYTES)),
        ("Least computation", lambda row: row["client_macs"], -1, lambda value: f"{amount(value)} MACs"),
        ("Shortest simulated time", lambda row: row["simulated_seconds"], -1, duration),
    )
    for name, pick, way, show in records:
        held = [(way * value["mean"], experiment) for row, experiment in finished if (value := pick(row))]
        if held:
            best = max(value for value, _ in held)
            holders = [experiment for value, experiment in held if value == best]
            others = f" and {len(holders) - 1} more" if len(holders) > 1 else ""
            who = "all alike" if 1 < len(held) == len(holders) else _named(holders[0]) + others
            tiles.append(
                f'<div class="card"><dt>{name}</dt><dd><span class="value">{show(way * best)}</span>'
                f'<span class="who">{who}</span></dd></div>'
            )
    return f'<dl class="tiles">{"".join(tiles[:4])}</dl>' if tiles else ""


def _accuracy(value: float) -> str:
    return written("global_accuracy", value)


def _worst_accuracy(row: Row) -> Any:
    worst = row["final"].get("worst_submodel")
    return worst if worst and worst["mean"] <= 1 else None


def _controls(groups: Sequence[Experiment], measures: Measures) -> str:
    parts = []
    if len(groups) > 1:
        buttons = "".join(
            f'<button type="button" aria-pressed="true" data-experiment="{experiment.number}" '
            f'title="Click to hide or show, double-click for it alone">{_named(experiment)}</button>'
            for experiment in groups
        )
        parts.append(f'<div class="legend" role="group" aria-label="Experiments shown">{buttons}</div>')
    if len(measures) > 1:
        options = "".join(
            f'<option value="{escape(name)}">{escape(str(measure["title"]))}</option>'
            for name, measure in measures.items()
        )
        parts.append(f'<label class="measure">Curves show <select class="choice">{options}</select></label>')
    return f'<div class="controls">{"".join(parts)}</div>'


def _table(rows: Sequence[Row], groups: Sequence[Experiment]) -> str:
    shown = columns(rows)
    head = "".join(f'<th scope="col">{escape(column.title)}</th>' for column in shown)
    body = []
    for place, experiment in enumerate(groups):
        cells = [column.cells[place] for column in shown[1:]]
        body.append(
            f'<tr data-experiment="{experiment.number}"><th scope="row">{_named(experiment)}</th>'
            + "".join(
                f"<td>{'<strong>' * cell.best}{escape(cell.text)}{'</strong>' * cell.best}</td>" for cell in cells
            )
            + "</tr>"
        )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-labelledby="table"><table><thead><tr>{head}</tr></thead>'
        f'<tbody>{"".join(body)}</tbody></table></div><p class="note">{escape(NOTE)}.</p>'
    )


def _details(experiment: Experiment) -> str:
    runs = "".join(map(_run, experiment.runs))
    return (
        f'<section class="card runs" data-experiment="{experiment.number}">'
        f"<h3>{_named(experiment)}</h3>{runs}</section>"
    )


def _run(run: Run) -> str:
    state = [f"{run.rounds_done} of {run.rounds} rounds" if not run.finished else f"{run.rounds_done} rounds"]
    if run.final and run.leading:
        state.append(written(run.leading, run.final.values[run.leading], metrics=run.metrics))
    if run.seconds is not None:
        state.append(duration(run.seconds))
    if not run.finished:
        state.append("unfinished")
    command = ""
    if run.command:
        button = '<button type="button" class="copy" aria-label="Copy the command">Copy</button>'
        command = f'<div class="command"><pre>{escape(run.command)}</pre>{button}</div>'
    return (
        f"<details><summary>Seed {run.seed} <small>{escape(' · '.join(state))}</small></summary>"
        f'{command}<pre tabindex="0" aria-label="config.toml">{escape(run.config)}</pre></details>'
    )
