"""The comparison table: one row per experiment, means over seeds, the best value of every column marked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from nestling.amounts import BYTES, amount, duration
from nestling.report.level_results import level_results
from nestling.report.measures import Metric, direction, leading, title, written
from nestling.report.read import Run
from nestling.report.runs_by_seed import Experiment, Statistic, experiments

if TYPE_CHECKING:
    from rich.text import Text

Row = dict[str, Any]

_HEADINGS = {
    "global_accuracy": "global accuracy",
    "worst_submodel": "worst {metric}",
    "mean_submodel": "mean {metric}",
    "local_accuracy": "local accuracy",
}
_OVER_SIZES = ("worst_submodel", "mean_submodel")


@dataclass(frozen=True)
class Cell:
    """The text of a cell, whether it is the best of its column, and the number it shows."""

    text: str
    best: bool = False
    value: float | None = None


@dataclass(frozen=True)
class Column:
    """A column: its title, its alignment, and a cell for every row."""

    title: str
    side: Literal["left", "right"]
    cells: tuple[Cell, ...]


def compare(runs: Sequence[Run]) -> list[Row]:
    """Return a row for every experiment among `runs`, as JSON-compatible values.

    Runs that differ only in their seed make one row. Means are objects with ``mean``, ``deviation`` (of the sample;
    null with one seed) and ``values``, or null. Unfinished runs count only if no run of the experiment is finished.

    >>> compare([])
    []
    """
    return [_row(experiment) for experiment in experiments(runs)]


def _row(experiment: Experiment) -> Row:
    first, counted, lead = experiment.runs[0], experiment.counted, experiment.leading
    measured = {name: None for run in counted if run.final for name in run.final.values}
    best = experiment.over(lambda run: run.best.values.get(lead) if run.best and lead else None)
    return {
        "experiment": experiment.label,
        "method": first.method,
        "model": first.model,
        "dataset": first.dataset,
        "partition": first.partition,
        "seeds": [run.seed for run in counted],
        "finished": experiment.finished,
        "unfinished": [run.seed for run in experiment.runs if not run.finished],
        "metrics": [msgspec.structs.asdict(metric) for metric in first.metrics],
        "rounds": max(run.rounds_done for run in counted),
        "sizes": len({level.parameters for level in first.levels.values()}) or None,
        "final": {name: _plain(experiment.final(name)) for name in measured},
        "best": {lead: _plain(best)} if lead else {},
        "bytes": _plain(experiment.over(lambda run: run.bytes)),
        "client_macs": _plain(experiment.over(lambda run: run.client_macs)),
        "simulated_seconds": _plain(experiment.over(lambda run: run.simulated_seconds)),
        "seconds": _plain(experiment.over(lambda run: run.seconds)),
        "directories": [str(run.directory) for run in experiment.runs],
    }


def metrics_of(row: Row) -> tuple[Metric, ...]:
    """Return the metrics of an experiment, the one that it is judged by first."""
    return tuple(Metric(**metric) for metric in row["metrics"])


def _plain(value: Statistic | None) -> dict[str, Any] | None:
    return asdict(value) | {"values": list(value.values)} if value else None


def columns(rows: Sequence[Row]) -> list[Column]:
    """Return the columns of the table, without empty ones."""
    result = [
        Column("experiment", "left", tuple(Cell(row["experiment"]) for row in rows)),
        Column("seeds", "right", tuple(Cell(str(len(row["seeds"])), value=len(row["seeds"])) for row in rows)),
        Column("rounds", "right", tuple(map(_rounds, rows))),
    ]
    finals = {name: None for row in rows for name in row["final"]}
    leads = [name for row in rows if (name := leading(row["final"], metrics_of(row))) and "perplexity" not in name]
    metric = _metric(rows)
    for name in dict.fromkeys([*_HEADINGS, *_perplexities(rows, list(finals)), *leads]):
        heading = _HEADINGS[name].replace("{metric}", metric) if name in _HEADINGS else title(name)
        result.append(_measure(heading, rows, [(name, _final(row, name)) for row in rows]))
    bests = [next(iter(row["best"].items()), ("", None)) for row in rows]
    names = {name.removeprefix("global_") for name, value in bests if value}
    result.append(_measure(f"best {title(names.pop()) if len(names) == 1 else 'round'}", rows, bests))
    for heading, key, show in _COSTS:
        means = [row[key]["mean"] if row[key] else None for row in rows]
        if key == "simulated_seconds" and not any(means):
            continue
        winners = _winners(rows, [None if mean is None else (key, -mean) for mean in means])
        texts = ["–" if mean is None else show(mean) for mean in means]
        result.append(Column(heading, "right", tuple(map(Cell, texts, winners, means))))
    return [column for column in result if any(cell.text != "–" for cell in column.cells)]


def _rounds(row: Row) -> Cell:
    return Cell(f"{row['rounds']}{'' if row['finished'] else ' …'}", value=row["rounds"])


def _final(row: Row, name: str) -> Any:
    """Return a final measure; None for those over sub-models if the only one is the whole model."""
    return None if row["sizes"] == 1 and name in _OVER_SIZES else row["final"].get(name)


def _perplexities(rows: Sequence[Row], names: Sequence[str]) -> list[str]:
    """Return the perplexities to show; the plain "perplexity" is left out if a labelled one is the same."""
    perplexities = [name for name in names if "perplexity" in name]
    labelled = [name for name in perplexities if name.startswith("perplexity_")]
    same = any(all(row["final"].get(name) == row["final"].get("perplexity") for row in rows) for name in labelled)
    return [name for name in perplexities if name != "perplexity" or not same]


_COSTS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("data sent", "bytes", lambda value: amount(value, BYTES)),
    ("client MACs", "client_macs", amount),
    ("simulated time", "simulated_seconds", duration),
    ("time", "seconds", duration),
)


def _measure(heading: str, rows: Sequence[Row], values: Sequence[tuple[str, Mapping[str, Any] | None]]) -> Column:
    texts: list[str] = []
    scores: list[tuple[str, float] | None] = []
    for row, (name, value) in zip(rows, values, strict=True):
        if value is None:
            texts.append("–")
            scores.append(None)
            continue
        mean = value["mean"]
        texts.append(written(name, mean, value["deviation"], metrics_of(row)))
        way = direction(name, mean, metrics_of(row))
        scores.append((f"{name} {way}", way * mean))  # accuracies and perplexities do not compete
    means = [value["mean"] if value else None for _, value in values]
    return Column(heading, "right", tuple(map(Cell, texts, _winners(rows, scores), means)))


def _winners(rows: Sequence[Row], scores: Sequence[tuple[str, float] | None]) -> list[bool]:
    """Return which rows have the highest score among finished rows on the same data; none if all are equal."""
    contests: dict[tuple[str, ...], list[float]] = {}
    entered: list[tuple[tuple[str, ...], float] | None] = []
    for row, score in zip(rows, scores, strict=True):
        entry = None
        if score is not None and row["finished"]:
            entry = ((row["dataset"], row["partition"], score[0]), score[1])
            contests.setdefault(entry[0], []).append(entry[1])
        entered.append(entry)
    return [entry is not None and min(contests[entry[0]]) < max(contests[entry[0]]) == entry[1] for entry in entered]


def sizes_table(groups: Sequence[Experiment]) -> dict[str, Any] | None:
    """Return the table of every size of every experiment for the page, or None if no size is known."""
    results = [(group, size) for group in groups for size in reversed(level_results(group))]
    if not results:
        return None
    titles = ("experiment", "level", "parameters", "bytes", "MACs of a sample")
    kinds = dict.fromkeys(size.kind for _, size in results if size.value)
    rows = []
    for group, size in results:
        cost, value = size.cost, size.value
        costs = [(cost.parameters, amount), (cost.bytes, lambda number: amount(number, BYTES)), (cost.macs, amount)]
        cells = [Cell(group.label), Cell(size.name, value=cost.ratio)]
        cells += [Cell("–") if number is None else Cell(show(number), value=number) for number, show in costs]
        for kind in kinds:
            if value is None or size.kind != kind:
                cells.append(Cell("–"))
            else:
                text = written(kind, value.mean, value.deviation, group.runs[0].metrics)
                cells.append(Cell(text, value=value.mean))
        rows.append({"experiment": group.number, "cells": [vars(cell) for cell in cells]})
    headings = [*titles, *map(title, kinds)]
    return {
        "name": "sizes",
        "section": "details",
        "title": "Every size",
        "about": "What the sub-model of every level costs, and what it reaches after the last round.",
        "note": "",
        "columns": [{"title": name, "side": "left" if place < 2 else "right"} for place, name in enumerate(headings)],
        "rows": rows,
    }


# How the headings begin that a narrow terminal leaves out, in this order.
_LEAST = ("time", "best", "seeds", "rounds", "simulated time", "local accuracy", "client MACs", "mean")
_NOTES = {  # what headings and cells mean, by what a table holds where it is said
    "global": "global: the whole model",
    "worst": "worst, mean: over sub-models",
    "local": "local: clients on data like their own",
    "best": "best: at the best round, which is only known afterwards; all others: after the last round",
    "perplexity": "perplexity: lower is better",
    "…": "…: not finished",
    "±": "±: standard deviation over seeds",
    "": "bold: the best finished experiment on the same data and partition",
}


def terminal(rows: Sequence[Row]) -> tuple[dict[str, Literal["left", "right"]], list[list[Text]]]:
    """Return headings with their alignment, and lines of rich texts, for `nestling.cli.screen.print_table`.

    >>> from nestling.report.read import Evaluation, Run
    >>> end = Evaluation(2, {"global_accuracy": 0.5}, {})
    >>> run = Run(".", "", {}, "one", "fedavg", "cnn", "digits", "", 0, 2, 2, True, (), end, end, 1, 1, None, 3.0, "")
    >>> headings, lines = terminal(compare([run]))
    >>> list(headings)[:4], [text.plain for text in lines[0]][:4]
    (['experiment', 'seeds', 'rounds', 'global accuracy'], ['one', '1', '2', '50.0 %'])
    """
    from rich.text import Text  # noqa: PLC0415

    shown = columns(rows)
    lines = [
        [Text(column.cells[place].text, "bold green" if column.cells[place].best else "") for column in shown]
        for place in range(len(rows))
    ]
    return {column.title: column.side for column in shown}, lines


def least(headings: Iterable[str]) -> list[str]:
    """Return the headings that a narrow terminal leaves out, in that order.

    >>> least(["experiment", "global accuracy", "best accuracy", "time"])
    ['time', 'best accuracy']
    """
    known = list(headings)
    return [heading for start in _LEAST for heading in known if heading.startswith(start)]


def note(headings: Iterable[str], lines: Iterable[Sequence[object]]) -> str:
    """Return what the headings and cells of a table mean, as far as they occur in it.

    >>> note(["experiment", "perplexity"], [])
    'perplexity: lower is better; bold: the best finished experiment on the same data and partition'
    """
    held = " ".join([*headings, *(str(cell) for line in lines for cell in line[1:])])
    return "; ".join(text for word, text in _NOTES.items() if word in held)


def _metric(rows: Sequence[Row]) -> str:
    """Return the metric that all experiments are judged by, or "sub-model" if they are judged by different ones."""
    leads = {name.removeprefix("global_") for row in rows if (name := leading(row["final"], metrics_of(row)))}
    return title(leads.pop()) if len(leads) == 1 else "sub-model"
