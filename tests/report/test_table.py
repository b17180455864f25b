"""Experiments and their table: who is grouped with whom, what is averaged, who wins."""

import itertools
import json
import statistics
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nestling.report import compare, experiments, find, terminal
from nestling.report.read import Evaluation, Level
from nestling.report.runs_by_seed import statistic
from nestling.report.table import columns
from tests.report import report_runs
from tests.report.report_runs import run


def bold(rows, heading):
    (column,) = [column for column in columns(rows) if column.title == heading]
    return [row["experiment"] for row, cell in zip(rows, column.cells, strict=True) if cell.best]


def test_seeds_become_one_row_with_mean_and_deviation(tmp_path):
    for seed in range(3):
        report_runs.make(tmp_path, "heterofl", seed, rounds=6)
    runs = find([tmp_path])
    (row,) = compare(runs)
    values = [each.final.values["worst_submodel"] for each in runs]
    assert row["seeds"] == [0, 1, 2]
    assert row["final"]["worst_submodel"]["values"] == values
    assert row["final"]["worst_submodel"]["mean"] == pytest.approx(statistics.mean(values))
    assert row["final"]["worst_submodel"]["deviation"] == pytest.approx(statistics.stdev(values))
    assert row["bytes"]["mean"] == pytest.approx(statistics.mean(each.bytes for each in runs))
    assert json.loads(json.dumps(row)) == row


def test_one_seed_has_no_deviation():
    (row,) = compare([run()])
    assert row["final"]["global_accuracy"] == {"mean": 0.5, "deviation": None, "values": [0.5]}


def test_best_is_apart_from_final():
    best = Evaluation(2, {"global_accuracy": 0.75}, {})
    headers, ((*_, best_cell, _, _, _),) = terminal(compare([run(best=best)]))
    assert list(headers)[5] == "best accuracy"
    assert best_cell.plain == "75.0 %"


def test_unfinished_runs_count_only_where_nothing_is_finished():
    part = run(seed=1, accuracy=0.1, finished=False, rounds_done=1)
    (row,) = compare([run(), part])
    assert (row["final"]["global_accuracy"]["mean"], row["seeds"], row["unfinished"]) == (0.5, [0], [1])
    (row,) = compare([part])
    assert (row["final"]["global_accuracy"]["mean"], row["finished"]) == (0.1, False)
    assert terminal([row])[1][0][2].plain == "1 …"


def test_experiments_of_one_name_are_told_apart_by_their_settings():
    slow, fast = ({"rounds": 3, "seed": seed, "local": {"lr": lr}} for seed, lr in ((0, 0.1), (1, 0.5)))
    elsewhere = slow | {"seed": 4, "workers": 2, "data": {"dir": "elsewhere"}}  # makes no other experiment
    groups = experiments([run(settings=slow), run(settings=fast, seed=1), run(settings=elsewhere, seed=4)])
    assert [experiment.label for experiment in groups] == ["one (local.lr=0.1)", "one (local.lr=0.5)"]
    assert [[each.seed for each in experiment.runs] for experiment in groups] == [[0, 4], [1]]


def test_a_label_has_all_settings_where_three_of_them_do_not_tell_experiments_apart():
    grid = itertools.product("ab", "cd", "ef", "gh")
    groups = experiments([run(settings=dict(zip("wxyz", values, strict=True))) for values in grid])
    assert len(groups) == 16
    assert groups[1].label == "one (w=a, x=c, y=e, z=h)"
    few = experiments([run(settings=dict.fromkeys("wxyz", value)) for value in "ab"])
    assert few[0].label == "one (w=a, x=a, y=a, …)"


def test_a_seed_run_twice_is_not_two_samples():
    groups = experiments([run(), run(seed=1), run(directory=Path("again"))])
    assert [(experiment.label, len(experiment.runs)) for experiment in groups] == [("one", 2), ("one #2", 1)]


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 2), st.sampled_from([0.1, 0.5])), max_size=12))
def test_grouping_is_a_partition(drawn):
    runs = [run(name, seed, settings={"lr": lr}, directory=Path(str(i))) for i, (name, seed, lr) in enumerate(drawn)]
    groups = experiments(runs)
    assert sorted(each.directory for one in groups for each in one.runs) == sorted(each.directory for each in runs)
    assert len({one.label for one in groups}) == len(groups)
    assert [one.number for one in groups] == list(range(len(groups)))
    for one in groups:
        assert len({each.seed for each in one.runs}) == len(one.runs)
        assert len({(each.name, each.settings["lr"]) for each in one.runs}) == 1


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=9))
def test_a_statistic_lies_among_its_values(values):
    each = statistic(values)
    assert min(values) - 1e-9 <= each.mean <= max(values) + 1e-9
    assert (each.deviation is None) == (len(values) == 1)


def test_the_best_of_a_column_is_bold_whichever_way_is_better():
    rows = compare([run("good", accuracy=0.9, bytes=4000), run("cheap", accuracy=0.8, bytes=3000)])
    assert bold(rows, "global accuracy") == bold(rows, "best accuracy") == ["good"]
    assert bold(rows, "data sent") == ["cheap"]
    assert bold(rows, "client MACs") == []  # all alike
    assert [style.style for style in terminal(rows)[1][0]][3] == "bold green"


def test_nobody_wins_alone_unfinished_or_on_other_data():
    assert bold(compare([run()]), "global accuracy") == []
    rows = compare([run("a"), run("b", accuracy=0.9, dataset="mnist"), run("c", accuracy=0.99, finished=False)])
    assert bold(rows, "global accuracy") == []


def test_accuracies_and_perplexities_do_not_compete():
    words = Evaluation(3, {"perplexity": 30.0, "worst_submodel": 70.0}, {})
    fewer = Evaluation(3, {"perplexity": 20.0, "worst_submodel": 90.0}, {})
    rows = compare([run("a"), run("x", final=words, best=words), run("y", final=fewer, best=fewer)])
    assert bold(rows, "perplexity") == bold(rows, "best round") == ["y"]
    assert bold(rows, "worst sub-model") == ["x"]
    (worst,) = [column for column in columns(rows) if column.title == "worst sub-model"]
    assert [cell.text for cell in worst.cells] == ["25.0 %", "70", "90"]


def test_a_model_of_one_size_has_no_worst_sub_model():
    whole, small = Level(1.0, 1000), Level(0.5, 250)
    rows = compare([run("whole", levels={"full": whole}), run("mixed", levels={"a": whole, "b": small})])
    (worst,) = [column for column in columns(rows) if column.title == "worst accuracy"]
    assert [cell.text for cell in worst.cells] == ["–", "25.0 %"]
    assert rows[0]["final"]["worst_submodel"]["mean"] == 0.25  # in JSON, as in summary.json


def test_columns_without_values_are_left_out():
    titles = [column.title for column in columns(compare([run(seconds=None)]))]
    assert "time" not in titles
    assert "simulated time" not in titles
    assert "local accuracy" not in titles


def test_a_perplexity_is_shown_once_under_its_label():
    masked = {"perplexity": 1145.0, "perplexity_all": 1145.0, "perplexity_masked": 3000.0}
    rows = compare([run("x", final=Evaluation(3, masked, {}), best=None)])
    titles = [column.title for column in columns(rows)]
    assert {"perplexity all", "perplexity masked"} <= set(titles)
    assert "perplexity" not in titles
    plain = compare([run("x", final=Evaluation(3, {"perplexity": 9.0}, {}), best=None)])
    assert "perplexity" in [column.title for column in columns(plain)]
