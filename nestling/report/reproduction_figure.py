"""The figure of a reproduction, of the paper's own kind: by average parameters, by rounds, by a share, or by row.

That of a comparison of our own shows every sub-model by its parameters, or accuracy by simulated time.
"""

from __future__ import annotations

from collections.abc import Sequence

from nestling.experiment.reproductions.definitions import Column, presets_of
from nestling.experiment.reproductions.expected_cost import level_costs
from nestling.experiment.reproductions.finished_runs import Finished
from nestling.report.reproduction_formats import heading
from nestling.report.reproduction_table import Table, TableRow, paper_value
from nestling.report.runs_by_seed import Statistic, statistic
from nestling.report.svg_plot import Plot, Series, draw
from nestling.settings import Experiment

_OURS, _PAPER = 0, 1  # colours


def figure(table: Table, finished: Finished, experiments: dict[str, Experiment], seeds: int) -> str:
    """Return the figure of a table as SVG: a panel for every measured column."""
    if table.reproduction.figure == "submodels":
        return draw(heading(table), [_by_submodel(table, finished, seeds)])
    plots = []
    for place, column in table.measured:
        if table.reproduction.figure == "round":
            plots.append(_curves(table, column, finished, seeds))
        elif table.reproduction.figure == "time":
            plots.append(_by_time(table, column, finished, seeds))
        elif table.reproduction.figure == "row":
            plots.append(_by_row(table, place, column))
        else:
            plots.append(_by_number(table, place, column, experiments))
    return draw(heading(table), plots)


def _by_submodel(table: Table, finished: Finished, seeds: int) -> Plot:
    """Return what every sub-model reaches in the first measured column's unit, a line per row."""
    _, column = table.measured[0]
    series = []
    for number, row in enumerate(table.rows):
        preset = next(iter(presets_of(row.row, table.scale).values()), "")
        runs = [finished[preset, seed].submodels for seed in range(seeds) if (preset, seed) in finished]
        levels = [level for level in (runs[0] if runs else {}) if all(level in run for run in runs)]
        points = []
        for level in levels:
            values = [value for run in runs if (value := run[level][1]) is not None]
            mean = statistic(values) if len(values) == len(runs) else None
            if mean is not None:
                parameters = sum(run[level][0] for run in runs) / len(runs)
                points.append((parameters, _in_unit(column, mean), level))
        if points:
            series.append(_series(row.row.name, points, number, joined=len(points) > 1, labelled=False))
    return Plot(
        "every sub-model after the last round", "parameters of the sub-model", _unit(column), series, log_x=True
    )


def _by_row(table: Table, place: int, column: Column) -> Plot:
    cells = [row.cells[place] for row in table.rows]
    printed = [
        (n, Statistic(value, None, ()), "") for n, cell in enumerate(cells) if (value := paper_value(cell.paper))
    ]
    ours = [(n, _in_unit(column, cell.ours), "") for n, cell in enumerate(cells) if cell.ours is not None]
    series = [
        _series("the paper", printed, _PAPER, joined=False, labelled=False, hollow=True),
        _series("ours", ours, _OURS, joined=False, labelled=False),
    ]
    return Plot(column.name, _unit(column), "", series, names=[row.row.name for row in table.rows])


def _by_number(table: Table, place: int, column: Column, experiments: dict[str, Experiment]) -> Plot:
    by_parameters = table.reproduction.figure == "parameters"
    lines = list(dict.fromkeys(row.row.series for row in table.rows))
    series = []
    for number, line in enumerate(lines):
        rows = [row for row in table.rows if row.row.series == line]
        printed = [
            (x, Statistic(value, None, ()), row.row.name)
            for row in rows
            if (value := paper_value(row.cells[place].paper)) is not None and (x := _paper_x(table, row)) is not None
        ]
        ours = [
            (x, _in_unit(column, mean), row.row.name)
            for row in rows
            if (mean := row.cells[place].ours) and (x := _x(table, row, column, experiments)) is not None
        ]
        joined = bool(line) or not by_parameters
        labelled = by_parameters and not line
        series.append(_series("the paper", printed, _PAPER, joined=joined, labelled=labelled and not ours, hollow=True))
        series.append(_series(line or "ours", ours, number if line else _OURS, joined=joined, labelled=labelled))
    x_title = "average parameters of a client's model" if by_parameters else table.reproduction.x_title
    return Plot(column.name, x_title, _unit(column), series, log_x=by_parameters or table.reproduction.log_x)


def _series(
    name: str,
    points: Sequence[tuple[float, Statistic, str]],
    colour: int,
    *,
    joined: bool,
    labelled: bool,
    hollow: bool = False,
) -> Series:
    """Return points with a place, a value and a label, in the order of places."""
    points = sorted(points, key=lambda point: point[0])
    return Series(
        name,
        [x for x, _, _ in points],
        [value.mean for _, value, _ in points],
        [value.deviation for _, value, _ in points],
        colour,
        line=joined,
        hollow=hollow,
        texts=[text.partition(" (")[0] for *_, text in points] if labelled else (),
    )


def _curves(table: Table, column: Column, finished: Finished, seeds: int) -> Plot:
    series = []
    for number, row in enumerate(table.rows):
        presets = presets_of(row.row, table.scale)
        preset = presets.get(column.run or next(iter(presets), ""))
        runs = [finished[preset, seed] for seed in range(seeds) if preset and (preset, seed) in finished]
        curves = [run.curve for run in runs if column.measure in run.curve]
        if not curves:
            continue
        places = [place for place in curves[0]["round"] if all(place in curve["round"] for curve in curves)]
        points = [
            (place, _mean([curve[column.measure][curve["round"].index(place)] for curve in curves])) for place in places
        ]
        known = [(place, value) for place, value in points if place is not None and value is not None]
        ys = [_shown(column, value) for _, value in known]
        series.append(Series(row.row.name, [place for place, _ in known], ys, colour=number, line=True))
    return Plot(column.name, "round", _unit(column), series, points=False)


def _by_time(table: Table, column: Column, finished: Finished, seeds: int) -> Plot:
    """Return a line for every run: rounds of two seeds do not end at the same time, so there is no mean of them."""
    series = []
    for number, row in enumerate(table.rows):
        preset = next(iter(presets_of(row.row, table.scale).values()), "")
        for run in (finished[preset, seed] for seed in range(seeds) if (preset, seed) in finished):
            pairs = zip(run.curve.get("simulated_minutes", []), run.curve.get(column.measure, []), strict=False)
            known = [(x, _shown(column, y)) for x, y in pairs if x is not None and y is not None]
            xs, ys = [x for x, _ in known], [y for _, y in known]
            series.append(Series(row.row.name, xs, ys, colour=number, line=True))
    return Plot(column.name, "minutes of the simulated clock", _unit(column), series, points=False)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None


def _x(table: Table, row: TableRow, column: Column, experiments: dict[str, Experiment]) -> float | None:
    """Return our place of a row: the mean parameters of its levels, or its number."""
    if table.reproduction.figure != "parameters":
        return row.row.x
    presets = presets_of(row.row, table.scale)
    preset = presets.get(column.run or next(iter(presets), ""))
    return None if preset is None else sum(level.share * level.parameters for level in level_costs(experiments[preset]))


def _paper_x(table: Table, row: TableRow) -> float | None:
    if table.reproduction.figure != "parameters":
        return row.row.x
    for column, cell in zip(table.reproduction.columns, row.cells, strict=True):
        if column.measure == "parameters":
            return paper_value(cell.paper)
    return None


def _shown(column: Column, value: float) -> float:
    """Return a figure in the unit in which the paper prints it."""
    return 100 * value if column.unit == "percent" else value


def _in_unit(column: Column, value: Statistic) -> Statistic:
    deviation = None if value.deviation is None else _shown(column, value.deviation)
    return Statistic(_shown(column, value.mean), deviation, ())


def _unit(column: Column) -> str:
    return f"{column.measure.replace('_', ' ')} (%)" if column.unit == "percent" else column.measure.replace("_", " ")
