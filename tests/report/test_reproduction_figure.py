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
