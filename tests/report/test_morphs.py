"""Panels of methods that prune: units kept, networks, and the gap between training and test accuracy."""

import pytest

from nestling.report.morphs import gap, kept, networks
from nestling.report.read import Evaluation, Round
from nestling.report.runs_by_seed import experiments
from tests.report.report_runs import run


def lines(trained, tested):
    """Rounds with training accuracies, and evaluations after some."""
    return tuple(
        Round(number, 0, 0, 0, train_accuracy=accuracy, evaluation=tested.get(number))
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


ONE = {2: {"submodels": {"a": {"accuracy": 0.1}}}, 4: {"submodels": {"a": {"accuracy": 0.5}}}}
END = Evaluation(4, {"global_accuracy": 0.9}, {"a": {"accuracy": 0.5}})  # global: of FedMorph's large network


def test_the_gap_is_that_of_the_rounds_since_the_last_test_and_of_the_model_that_clients_train():
    figure = gap(experiments([run(history=lines([0.2, 0.4, 0.6, 0.8], ONE), final=END)]))
    (series,) = figure["series"]
    assert series["x"]["round"] == [2, 4]
    assert series["y"]["gap"] == pytest.approx([0.2, 0.2])


@pytest.mark.parametrize(
    "changes",
    [
        {"partition": "dirichlet"},  # clients are trained and tested on other classes
        {"method": "fedrolex"},  # the window that is tested is not the one that was trained
        {"final": Evaluation(4, {}, {"a": {"accuracy": 0.9}, "e": {"accuracy": 0.5}})},
        {"final": None},
    ],
)
def test_there_is_no_gap_where_training_and_test_are_not_about_the_same(changes):
    settings = {"history": lines([0.2, 0.4, 0.6, 0.8], ONE), "final": END} | changes
    assert gap(experiments([run(**settings)])) is None
