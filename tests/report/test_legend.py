"""Names and colours: the same method looks the same everywhere, and everybody can see the difference."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nestling.methods import names
from nestling.report.legend import COLOURS, METHODS, display_names, looks, styles
from nestling.report.runs_by_seed import experiments
from tests.report.report_runs import run


def luminance(hex_colour):
    parts = [int(hex_colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("ground", ["#ffffff", "#181c20"])
@pytest.mark.parametrize("ink", COLOURS)
def test_colours_can_be_seen_on_light_and_dark(ink, ground):
    light, dark = sorted((luminance(ink), luminance(ground)), reverse=True)
    assert (light + 0.05) / (dark + 0.05) >= 3


@given(st.lists(st.sampled_from([*METHODS, "mine"]), max_size=20))
def test_no_two_experiments_look_alike(methods):
    drawn = styles(methods)
    assert len(drawn) == len(methods)
    assert len({(style.place, style.hollow) for style in drawn}) == len(methods)


def test_a_method_has_the_same_colour_on_every_page():
    pages = [["heterofl"], ["fedrolex", "heterofl"], ["mine", "fedavg", "fjord", "heterofl", "fedavg"]]
    assert {styles(page)[page.index("heterofl")].colour for page in pages} == {COLOURS[0]}


def test_two_experiments_of_a_method_share_its_colour():
    one, _, other = styles(["fedavg", "nefl", "fedavg"])
    assert one.colour == other.colour
    assert (one.hollow, other.hollow) == (False, True)


def test_looks_do_not_depend_on_the_order_of_experiments():
    runs = [run("fedavg-large"), run("fedavg-small"), run("nefl", method="nefl")]
    drawn = [
        dict(zip((one.name for one in order), looks(experiments(order)), strict=True)) for order in (runs, runs[::-1])
    ]
    assert drawn[0] == drawn[1]
    assert not drawn[0]["fedavg-large"].hollow


def test_names_are_methods_where_that_is_enough():
    runs = [
        run("fedavg-large-digits"),
        run("fedavg-small-digits"),
        run("nefl-digits", method="nefl"),
        run("x", method="x"),
    ]
    assert display_names(experiments(runs)) == ["FedAvg large", "FedAvg small", "NeFL", "x"]


def test_names_are_unique():
    runs = [run("heterofl-digits", method="heterofl", settings={"lr": lr}) for lr in (0.1, 0.2)]
    assert display_names(experiments(runs)) == ["heterofl-digits (lr=0.1)", "heterofl-digits (lr=0.2)"]


def test_all_methods_have_a_name():
    assert set(names()) <= set(METHODS)
