"""Levels and mixes: every way to write them, back and forth, and what is refused."""

import math
import pickle
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nestling import fleet
from nestling.fleet import LEVELS, Level, parse_level, parse_levels, parse_mix, write_mix
from tests.fleet.fleet_refuse import refused

RATIOS = st.floats(0, 1, exclude_min=True)
SOME_LEVELS = st.lists(RATIOS | st.sampled_from(list(LEVELS)), min_size=1, max_size=6).map(
    lambda given: list({level.ratio: level for level in map(parse_level, given)}.values())
)
SHARES = st.floats(1e-9, 1e9)


def names(levels):
    return [level.name for level in levels]


def shares(mix):
    return {level.name: share for level, share in mix}


@pytest.mark.parametrize(
    ("given", "expected", "ratios"),
    [
        ("a-b-c-d-e", ["a", "b", "c", "d", "e"], [1, 1 / 2, 1 / 4, 1 / 8, 1 / 16]),
        ("a-e", ["a", "e"], [1, 1 / 16]),
        ("A, e", ["a", "e"], [1, 1 / 16]),
        ("a,c,0.3", ["a", "c", "0.3"], [1, 1 / 4, 0.3]),
        ("0.2-0.4-0.6-0.8-1", ["0.2", "0.4", "0.6", "0.8", "1"], [0.2, 0.4, 0.6, 0.8, 1]),
        ("e-a", ["e", "a"], [1 / 16, 1]),  # the order is the caller's
        (["a", 0.3, 1 / 5], ["a", "0.3", "0.2"], [1, 0.3, 0.2]),
        ((Fraction(1, 5), np.float64(0.25), np.int64(1)), ["0.2", "0.25", "1"], [0.2, 0.25, 1]),
        ("0.50-1.00", ["0.5", "1"], [0.5, 1]),
        ("1/5", ["0.2"], [0.2]),
        ("a-1e-3", ["a", "0.001"], [1, 0.001]),
        ("1E-5,e", ["0.00001", "e"], [1e-5, 1 / 16]),
    ],
)
def test_ways_to_write_levels(given, expected, ratios):
    levels = parse_levels(given)
    assert names(levels) == expected
    assert [level.ratio for level in levels] == ratios
    assert all(type(level.ratio) is float for level in levels)


@given(SOME_LEVELS)
def test_levels_written_down_are_read_back(levels):
    for sign in "-,":
        assert parse_levels(sign.join(names(levels))) == tuple(levels)
    assert parse_levels(levels) == parse_levels(names(levels)) == tuple(levels)
    assert pickle.loads(pickle.dumps(levels)) == levels


@given(RATIOS)
def test_names_say_the_ratio_and_could_name_a_file(ratio):
    level = parse_level(ratio)
    assert level == Level(level.name, ratio) == parse_level(level.name)
    assert set(level.name) <= set("0123456789.")


@pytest.mark.parametrize(
    "bad", ["f", "", "aa", "a1", "nan", "inf", "0", "-1", "1.01", "1/0", "1/2/3", "b b", "1e999999999"]
)
def test_no_such_level(bad):
    refused(lambda: parse_level(bad), f"there is no level {bad!r}", "a, b, c, d, e", "1/16", "above 0")


@pytest.mark.parametrize("bad", [0, -0.5, 1.5, 10**400, math.nan, math.inf, True, None, 1j, b"a", ["a"]])
def test_no_such_level_in_a_list(bad):
    refused(lambda: parse_levels(["a", bad]), f"there is no level {bad!r}")


@pytest.mark.parametrize("bad", ["a-a", "b-0.5", "a,c,1", ["d", 0.125], "a:1,A:2"])
def test_levels_named_twice(bad):
    refused(lambda: parse_mix(bad), "the same ratio", "once")
    if ":" not in bad:
        refused(lambda: parse_levels(bad), "the same ratio", "once")


def test_other_refusals_of_levels():
    refused(lambda: parse_levels([]), "at least one level")
    refused(lambda: parse_levels(3), "'a-b-c'", "3")
    refused(lambda: parse_levels("a--c"), "there is no level ''")
    refused(lambda: parse_levels("a-b,c"), "there is no level 'a-b'")
    refused(lambda: Level("a", 0.5), "'b' or '0.5'", "not 'a'")
    refused(lambda: Level("half", 0.5), "'b' or '0.5'", "not 'half'")
    refused(lambda: Level("x", 2), "the ratio of level 'x'", "at most 1", "not 2")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("a1-e9", {"a": 0.1, "e": 0.9}),
        ("a2-b8", {"a": 0.2, "b": 0.8}),
        ("A10,e30", {"a": 0.25, "e": 0.75}),
        ("a:0.06,b:0.10,c:0.11,d:0.18,e:0.55", {"a": 0.06, "b": 0.1, "c": 0.11, "d": 0.18, "e": 0.55}),
        ("a-b-c", {"a": 1 / 3, "b": 1 / 3, "c": 1 / 3}),
        ("0.2-0.4-0.6-0.8-1", {"0.2": 0.2, "0.4": 0.2, "0.6": 0.2, "0.8": 0.2, "1": 0.2}),
        ("0.3:1/4,a:3/4", {"0.3": 0.25, "a": 0.75}),
        ("0.3:3-a:1", {"0.3": 0.75, "a": 0.25}),
        ({"a": 1, "e": 3}, {"a": 0.25, "e": 0.75}),
        ({0.3: 1, parse_level("e"): 3}, {"0.3": 0.25, "e": 0.75}),
        ([["a", 1], ("e", 3)], {"a": 0.25, "e": 0.75}),
        (["a1", "e:3"], {"a": 0.25, "e": 0.75}),
        (["a", 0.3], {"a": 0.5, "0.3": 0.5}),
        ({"a": 1e308, "e": 1e308}, {"a": 0.5, "e": 0.5}),
        ("e", {"e": 1}),
    ],
)
def test_ways_to_write_mixes(given, expected):
    assert shares(parse_mix(given)) == expected


@given(st.data(), SOME_LEVELS)
def test_shares_are_proportions_and_mixes_are_read_back(data, levels):
    given = [(level, data.draw(SHARES)) for level in levels]
    mix = parse_mix(given)
    assert math.fsum(share for _, share in mix) == pytest.approx(1, abs=1e-12)
    whole = math.fsum(share for _, share in given)
    assert [share for _, share in mix] == pytest.approx([share / whole for _, share in given], rel=1e-9)
    assert parse_mix(mix) == parse_mix(write_mix(mix)) == parse_mix(dict(mix)) == mix


@pytest.mark.parametrize("text", ["a8-b14-c5-d20-e20", "a15-b7-c5-d14-e14", "a20-b18-c12-d19-e1"])
def test_a_mix_stays_as_it_is_though_its_shares_do_not_quite_sum_to_1(text):
    mix = parse_mix(text)
    assert parse_mix(mix) == parse_mix(write_mix(mix)) == mix


@pytest.mark.parametrize("share", ["0", "-1", "nan", "inf", "many", "", "1/0"])
def test_shares_that_cannot_be(share):
    refused(lambda: parse_mix(f"a:{share},b:1"), "the share of 'a'", "above 0", share)
    refused(lambda: parse_mix({"a": share, "b": 1}), "the share of 'a'", "above 0", repr(share))


@pytest.mark.parametrize("share", [0, -1, math.nan, math.inf, 10**400, True, "2", [1]])
def test_shares_that_cannot_be_numbers(share):
    for mix in ([("a", share), ("b", 1)], {"b": 1, "a": share}):
        refused(lambda mix=mix: parse_mix(mix), "the share of 'a'", "above 0", repr(share))


def test_other_refusals_of_mixes():
    refused(lambda: parse_mix("a0-e10"), "the share of 'a'", "above 0")
    refused(lambda: parse_mix("a:1,b"), "'b' has no share", "all or to none")
    refused(lambda: parse_mix("a1-b"), "'b' has no share")
    refused(lambda: parse_mix("f1-e9"), "there is no level 'f'")
    refused(lambda: parse_mix({}), "holds nothing")
    refused(lambda: parse_mix(7), "a mix of levels", "not 7")
    refused(lambda: parse_mix(None), "a mix of levels", "not None")


def test_the_papers_own():
    assert list(shares(fleet.FEDROLEX_REAL_WORLD).values()) == [0.06, 0.10, 0.11, 0.18, 0.55]
    assert list(shares(fleet.FEDROLEX_REAL_WORLD)) == list(LEVELS)
    assert [level.ratio for level in fleet.NEFL_FIVE] == [0.2, 0.4, 0.6, 0.8, 1]
    assert [level.ratio for level in fleet.NEFL_SQUARES] == [0.04, 0.16, 0.36, 0.64, 1]
    assert [level.ratio for level in fleet.NEFL_THREE] == [0.5, 0.75, 1]
