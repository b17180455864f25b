"""Final results: sizes, distributions over clients, who took part, and coverage."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nestling.report import experiments, find
from nestling.report.read import Evaluation, Level
from nestling.report.spread import by_client, by_size, coverage, nested, participation, shades
from tests.report import report_runs
from tests.report.report_runs import run


@pytest.fixture(scope="module")
def groups(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for method in ("heterofl", "fedrolex"):
        for seed in range(2):
            report_runs.make(folder, method, seed, rounds=8)
    return experiments(find([folder]))


def test_sizes_are_drawn_from_the_smallest_with_their_score(groups):
    figure = by_size(groups)
    (line,) = [series for series in figure["series"] if series["experiment"] == groups[1].number]
    assert line["x"]["parameters"] == [6_594, 25_274, 98_922, 391_370, 1_556_874]
    assert line["texts"][0] == "level e"
    scores = [
        sum(one.final.submodels[level]["accuracy"] for one in groups[1].runs) / 2 for level in ("e", "d", "c", "b", "a")
    ]
    assert line["y"]["score"] == pytest.approx(scores, rel=1e-5)
    assert figure["measures"][0]["unit"] == "percent"


def test_levels_of_the_same_cost_are_one_size():
    whole = Level(1.0, 1000, 4000, 9000)
    end = Evaluation(3, {"global_accuracy": 0.9}, {name: {"accuracy": 0.9} for name in "ab"})
    figure = by_size(experiments([run(final=end, levels={"a": whole, "b": whole})]))
    (line,) = figure["series"]
    assert (line["x"]["parameters"], line["y"]["score"], line["texts"]) == ([1000], [0.9], ["level a to b"])
    assert figure["guides"]


def test_nested_sizes_are_drawn_once_for_all_methods_that_have_them(groups):
    (figure,) = nested(groups)
    assert figure["experiments"] == [0, 1]
    assert [size["name"] for size in figure["sizes"]] == list("abcde")


def test_every_client_is_in_the_distribution(groups):
    figure = by_client(groups)
    for row, group in zip(figure["rows"], groups, strict=True):
        values = [value for one in group.runs for value in one.local.values()]
        assert sum(row["bins"]) == row["count"] == len(values)
        assert figure["low"] <= min(values)
        assert max(values) <= figure["high"]
        assert row["mean"] == pytest.approx(sum(values) / len(values), rel=1e-5)
        assert row["quantiles"] == sorted(row["quantiles"])


def test_a_single_value_of_all_clients_has_a_distribution():
    figure = by_client(experiments([run(local={"0": 1.0, "1": 1.0})]))
    assert figure["low"] < figure["high"]
    assert sum(figure["rows"][0]["bins"]) == 2


def test_who_took_part_adds_up(groups):
    for row, group in zip(participation(groups)["rows"], groups, strict=True):
        entries = [entry for one in group.runs for entry in one.history]
        assert sum(part["count"] for part in row["parts"]) == sum(sum(entry.levels.values()) for entry in entries)
        assert [part["name"] for part in row["parts"]] == [f"level {name}" for name in "abcde"]
        assert row["rounds"] == 16


def test_coverage_shows_a_staircase_and_an_even_roll(groups):
    rolled, stairs = coverage(groups)  # fedrolex, heterofl
    units = {one["experiment"]: one["rows"] for one in (stairs, rolled)}
    (axis,) = [row for row in units[stairs["experiment"]] if row["name"] == "conv4"]
    assert len(set(axis["shades"])) == 5
    assert sorted(axis["shades"], reverse=True) == list(axis["shades"])
    assert len(axis["shades"]) == 128
    assert axis["even"] == pytest.approx(0.2)
    assert min(row["even"] for row in units[rolled["experiment"]]) > 0.5


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=700))
def test_shades_keep_to_their_range(units):
    strip = shades(units)
    assert len(strip) == 128
    assert all(0 <= int(shade, 36) <= 35 for shade in strip)
    if len(units) <= 128:
        assert max(strip) == ("z" if any(units) else "0")
    if len(set(units)) == 1:
        assert set(strip) == {"z" if units[0] else "0"}
