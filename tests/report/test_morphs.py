"""Panels of methods that prune: units kept, networks, and the gap between training and test accuracy."""

import pytest

from nestling.report.morphs import gap, kept, networks
from nestling.report.read import Round
from nestling.report.runs_by_seed import experiments
from tests.report.report_runs import run


def lines(trained, tested, **more):
    """Rounds with training accuracies, and evaluations after some."""
    counts = more.pop("levels", {"a": 1})
    return tuple(
        Round(number, 0, 0, 0, train_accuracy=accuracy, levels=counts, evaluation=tested.get(number))
        for number, accuracy in enumerate(trained, start=1)
    )


def test_what_is_kept_has_a_pair_of_bars_for_every_axis():
    units = {"first": {"stem": 0.5, "head": 0.5}, "last": {"stem": 1.0, "head": 0.125}}
    (figure,) = kept(experiments([run(panels={"kept": units})]))
    assert figure["rows"] == [{"name": "stem", "values": [0.5, 1.0]}, {"name": "head", "values": [0.5, 0.125]}]
    assert kept(experiments([run(panels={"kept": {"first": 3}})])) is None
    assert kept(experiments([run(panels={"kept": {"first": {"stem": "x"}, "last": {}}})])) is None


def test_networks_on_the_way_are_lines_with_names():
    tested = {2: {"global_accuracy": 0.75, "networks": {"averaged": {"accuracy": 0.5}, "morphed": {"accuracy": 0.25}}}}
    (figure,) = networks(experiments([run(history=lines([0.1, 0.2], tested))]))
    assert [(one["x"]["round"], one["y"]["accuracy"]) for one in figure["series"]] == [
        ([2], [0.75]),
        ([2], [0.5]),
        ([2], [0.25]),
    ]
    assert len({one["name"] for one in figure["series"]}) == 3
    assert networks(experiments([run()])) is None


def test_the_gap_is_that_of_the_rounds_since_the_last_test():
    tested = {2: {"submodels": {"a": {"accuracy": 0.1}}}, 4: {"submodels": {"a": {"accuracy": 0.5}}}}
    figure = gap(experiments([run(history=lines([0.2, 0.4, 0.6, 0.8], tested))]))
    (series,) = figure["series"]
    assert series["x"]["round"] == [2, 4]
    assert series["y"]["gap"] == pytest.approx([0.2, 0.2])


def test_the_gap_compares_clients_with_the_sub_models_that_they_trained():
    tested = {1: {"global_accuracy": 0.9, "submodels": {"a": {"accuracy": 0.9}, "e": {"accuracy": 0.5}}}}
    (series,) = gap(experiments([run(history=lines([0.8], tested, levels={"a": 1, "e": 3}))]))["series"]
    assert series["y"]["gap"] == pytest.approx([0.8 - (0.9 + 3 * 0.5) / 4])


def test_there_is_no_gap_where_training_and_test_are_not_about_the_same():
    tested = {1: {"global_accuracy": 0.9, "submodels": {"a": {"accuracy": 0.9}}}}
    assert gap(experiments([run(history=lines([0.8], tested), partition="dirichlet")])) is None
    tested = {1: {"submodels": {"a": {"accuracy": 0.9}, "c": {"accuracy": 0.7}}}}
    assert gap(experiments([run(history=lines([0.8], tested, levels={"e": 1}))])) is None  # e was not tested
