"""The figure and the table of a comparison of sub-models, from finished runs."""

import re

import pytest

from nestling.experiment.presets import PRESETS
from nestling.experiment.reproductions import find
from nestling.experiment.reproductions.finished_runs import FinishedRun
from nestling.report.reproduction_figure import figure
from nestling.report.reproduction_table import build

LEVELS = {"1": 700_000, "0.8": 560_000, "0.2": 140_000}


def finished(method, seed, top):
    """A run whose sub-models reach `top` and, the smaller they are, less."""
    accuracies = {level: (parameters, top - 0.1 * k) for k, (level, parameters) in enumerate(LEVELS.items())}
    last = {"round": 20, "global_accuracy": top, "worst_submodel": top - 0.2, "mean_submodel": top - 0.1}
    curve = {"round": [10, 20], "bytes_down": [10**9, 3 * 10**9], "client_macs": [1, 2]}
    curve |= {"global_accuracy": [0.5, top], "mean_submodel": [0.4, top - 0.1]}
    preset = f"{method}-cifar10-grand-evening"
    best = last | {"round": 10, "global_accuracy": 0.99}
    return FinishedRun(preset, seed, "0", {}, last, best, 1, 1, 1, 1.0, curve, accuracies)


@pytest.fixture(scope="module")
def table_and_runs():
    grand = find("grand-comparison")
    runs = [finished("heterofl", 0, 0.6), finished("heterofl", 1, 0.7), finished("nefl", 0, 0.8)]
    by_key = {run.key: run for run in runs}
    presets = {name: PRESETS[name]() for name in PRESETS if name.endswith("-grand-evening")}
    return build(grand, grand.rows, "evening", seeds=2, finished=by_key, experiments=presets), by_key, presets


def test_the_table_has_the_last_round_and_one_budget_of_bytes(table_and_runs):
    table, _, _ = table_and_runs
    (row,) = (row for row in table.rows if row.row.name == "HeteroFL")
    assert [cell.text for cell in row.cells[:3]] == ["65.00 ± 7.07", "45.00 ± 7.07", "55.00 ± 7.07"]
    assert [cell.text for cell in row.cells[3:]] == ["50.00 ± 0.00", "40.00 ± 0.00"]  # the first of two evaluations
    assert table.notes[0].startswith("after the last round")


def test_the_figure_has_a_line_for_every_method_and_a_point_for_every_submodel(table_and_runs):
    table, runs, presets = table_and_runs
    text = figure(table, runs, presets, seeds=2)
    assert text.count("<polyline") + len(re.findall(r"<path [^>]*fill=\"none\"", text)) >= 2
    assert "HeteroFL" in text
    assert "NeFL" in text
    assert "FjORD" not in text  # it has no finished run
    assert text.count("<circle") >= 6


def test_time_to_accuracy_is_read_off_the_curve_and_drawn_by_the_clock():
    table_ = find("time-to-accuracy")
    names = {row.runs["only"]: PRESETS[row.runs["only"]]() for row in table_.rows}
    curve = {"round": [1, 2, 3], "simulated_minutes": [1.0, 2.5, 9.0], "client_macs": [10, 20, 30]}
    last = {"round": 3, "global_accuracy": 0.75, "worst_submodel": 0.5}
    curves = {"waiting-digits": [0.1, 0.65, 0.75], "buffered-digits": [0.6, 0.81, 0.75]}
    runs = {
        (name, 0): FinishedRun(name, 0, "0", {}, last, last, 1, 1, 30, 1.0, {**curve, "global_accuracy": accuracies})
        for name, accuracies in curves.items()
    }
    table = build(table_, table_.rows, "laptop", seeds=1, finished=runs, experiments=names)
    texts = [[cell.text for cell in row.cells[2:]] for row in table.rows]
    assert texts == [["2.5", "", "9.0", "30"], [""] * 4, ["1.0", "2.5", "9.0", "30"]]
    assert figure(table, runs, names, seeds=1).count("<polyline") == 2
