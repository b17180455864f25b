"""Simulated devices, what they can carry, and the clock."""

import math
import pickle
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import nn

import nestling
from nestling.fleet import (
    DEVICES,
    LEVELS,
    TRAINING,
    Device,
    RoundClock,
    Timing,
    level_for,
    online,
    parse_level,
    population,
    round_clock,
    time_of,
)
from tests.fleet.fleet_refuse import refused

TOY = Device("toy", memory=1000, speed=100, down=10, up=5, available=0.5)
AMOUNTS = st.integers(1, 10**12)
COSTS = st.dictionaries(
    st.sampled_from([parse_level(name) for name in LEVELS]),
    st.builds(lambda b, m, p: SimpleNamespace(bytes=b, macs=m, memory=p), AMOUNTS, AMOUNTS, AMOUNTS),
    min_size=1,
)
SECONDS = st.floats(0, 1e6)
TIMINGS = st.dictionaries(st.integers(0, 100), st.builds(Timing, SECONDS, SECONDS, SECONDS), max_size=8)


# ---- devices


def test_the_named_devices_grow_in_every_respect_but_availability():
    assert list(DEVICES) == ["sensor", "phone-low", "phone-mid", "phone-high", "laptop", "workstation"]
    for field in ("memory", "speed", "down", "up"):
        figures = [getattr(device, field) for device in DEVICES.values()]
        assert figures == sorted(figures)
    assert all(device.up <= device.down for device in DEVICES.values())
    assert all(name == device.name for name, device in DEVICES.items())


@pytest.mark.parametrize("field", ["memory", "speed", "down", "up"])
@pytest.mark.parametrize("bad", [0, -1, math.nan, math.inf, "fast", None])
def test_devices_that_cannot_be(field, bad):
    refused(lambda: replace(TOY, **{field: bad}), f"the {field} of device 'toy'", "above 0", repr(bad))


def test_other_refusals_of_devices():
    for bad in (-0.1, 1.1, math.nan, "often"):
        refused(lambda bad=bad: replace(TOY, available=bad), "the availability of device 'toy'", "at most 1", repr(bad))
    for bad in ("", " ", 3):
        refused(lambda bad=bad: replace(TOY, name=bad), "needs a name", repr(bad))


# ---- population


@pytest.mark.parametrize(
    "mix",
    [
        "phone-low:3,laptop:1",
        "phone-low:0.75, laptop:0.25",
        {"phone-low": 3, "laptop": 1},
        {DEVICES["phone-low"]: 6, DEVICES["laptop"]: 2},
        [("phone-low", 3), (DEVICES["laptop"], 1)],
    ],
)
def test_ways_to_write_a_population(mix):
    people = population(80, mix, seed=4)
    dealt = [people.device_of(client) for client in range(80)]
    assert Counter(device.name for device in dealt) == {"phone-low": 60, "laptop": 20}
    assert people == population(80, "phone-low:3,laptop:1", seed=4)
    assert [pickle.loads(pickle.dumps(people)).device_of(client) for client in range(80)] == dealt
    assert [population(80, mix, seed=5).device_of(client) for client in range(80)] != dealt


def test_populations_without_shares_and_with_devices_of_ones_own():
    assert Counter(population(10, [TOY, "sensor"]).device_of(k).name for k in range(10)) == {"toy": 5, "sensor": 5}
    assert population(342_477, "sensor,laptop").device_of(342_476) in DEVICES.values()


def test_devices_do_not_follow_levels():
    """A client's device and its level are drawn apart, or the largest devices would all be at one level."""
    people = population(400, "sensor,laptop", seed=0)
    levels = nestling.fleet.Fleet(400, 1, nestling.fleet.parse_mix("a-e"), seed=0)
    pairs = Counter((people.device_of(k).name, levels.level(k, 0).name) for k in range(400))
    assert len(pairs) == 4
    assert min(pairs.values()) > 60


def test_refusals_of_populations():
    refused(lambda: population(5, "phone-lo:1"), "there is no device 'phone-lo'", "'phone-low'")
    refused(lambda: population(5, "toaster"), "there is no device 'toaster'", "'sensor'")
    refused(lambda: population(5, [3]), "there is no device 3")
    refused(lambda: population(5, "laptop:1,laptop:2"), "'laptop' is named twice")
    refused(lambda: population(5, "laptop:0,sensor:1"), "the share of 'laptop'", "above 0")
    refused(lambda: population(5, "laptop:1,sensor"), "'sensor' has no share")
    refused(lambda: population(5, []), "holds nothing")
    refused(lambda: population(5, 5), "a mix of devices", "not 5")
    refused(lambda: population(0, "laptop"), "the number of clients", "not 0")
    refused(lambda: population(5, "laptop").device_of(5), "the client", "from 0 to 4")


# ---- online


def test_online_as_often_as_said():
    for available in (0.1, 0.5, 0.9):
        device = replace(TOY, available=available)
        assert sum(online(device, 3, round) for round in range(2000)) / 2000 == pytest.approx(available, abs=0.05)
        assert sum(online(device, client, 3) for client in range(2000)) / 2000 == pytest.approx(available, abs=0.05)


@given(st.integers(0, 10**6), st.integers(0, 10**4), st.integers(0, 99), st.floats(0, 1), st.floats(0, 1))
def test_who_is_more_available_is_never_less_online(client, round, seed, one, other):
    less, more = sorted([one, other])
    there = [online(replace(TOY, available=p), client, round, seed) for p in (0, less, more, 1)]
    assert there == sorted(there)
    assert (there[0], there[-1]) == (False, True)


def test_refusals_of_online():
    refused(lambda: online(TOY, -1, 0), "the client")
    refused(lambda: online(TOY, 0, 0.5), "the round")
    refused(lambda: online(TOY, 0, 0, "x"), "the seed")


# ---- what fits


def fits(device, costs, deadline=None, steps=1):
    try:
        return level_for(device, costs, deadline, steps).ratio
    except nestling.NestlingError:
        return 0.0


@given(COSTS, AMOUNTS, AMOUNTS)
def test_more_memory_never_gives_a_smaller_level(costs, one, other):
    less, more = (replace(TOY, memory=memory) for memory in sorted([one, other]))
    assert fits(less, costs) <= fits(more, costs)
    assert fits(more, costs) == max([x.ratio for x, cost in costs.items() if cost.memory <= more.memory], default=0)


@given(COSTS, st.floats(1e-3, 1e12), st.floats(1, 10), st.integers(1, 50))
def test_faster_devices_later_deadlines_and_fewer_steps_never_give_a_smaller_level(costs, deadline, factor, steps):
    roomy = replace(TOY, memory=10**12)
    level = fits(roomy, costs, deadline, steps)
    assert level <= fits(roomy, costs, deadline * factor, steps)
    assert level <= fits(roomy, costs, deadline, 1)
    assert level <= fits(roomy, costs)
    for field in ("speed", "down", "up"):
        assert level <= fits(replace(roomy, **{field: getattr(roomy, field) * factor}), costs, deadline, steps)
    if level:
        cost = next(cost for known, cost in costs.items() if known.ratio == level)
        assert time_of(roomy, cost.bytes, cost.bytes, TRAINING * cost.macs * steps).total <= deadline


def test_bounds_belong_to_what_fits():
    costs = {parse_level("a"): SimpleNamespace(bytes=10, macs=100, memory=1000)}  # 1 s + 3 s a step + 2 s
    assert level_for(TOY, costs, deadline=6).name == "a"
    assert level_for(TOY, costs, deadline=12, steps=3).name == "a"
    refused(lambda: level_for(TOY, costs, deadline=5.9), "takes 6 s at level 'a'", "the deadline is 5.9 s")
    refused(lambda: level_for(TOY, costs, deadline=6, steps=2), "takes 9 s")
    refused(lambda: level_for(replace(TOY, memory=999), costs), "'toy' has 999 bytes", "'a' needs 1,000")
    refused(lambda: level_for(TOY, {}), "no levels", "'toy'")
    refused(lambda: level_for(TOY, costs, deadline=0), "the deadline", "above 0")
    refused(lambda: level_for(TOY, costs, steps=0), "the number of steps")


def test_costs_are_those_that_nestling_tells():
    net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2))
    axes = nestling.trace(net, torch.zeros(1, 4))
    costs = {
        parse_level(name): nestling.cost(net, axes, nestling.plan(axes, ratio), torch.zeros(1, 4), batch=8)
        for name, ratio in LEVELS.items()
    }
    needs = [cost.memory for cost in costs.values()]
    assert needs == sorted(needs, reverse=True)
    assert [level_for(replace(TOY, memory=need), costs).name for need in needs] == list(LEVELS)
    assert level_for(replace(TOY, memory=needs[2] - 1), costs).name == "d"


# ---- the clock


def test_time_of():
    timing = time_of(TOY, bytes_down=20, bytes_up=30, macs=50)
    assert timing == Timing(download=2.0, compute=0.5, upload=6.0)
    assert timing.total == 8.5
    assert time_of(TOY, 0, 0, 0).total == 0
    for bad in (-1, math.nan, math.inf, "many"):
        refused(lambda bad=bad: time_of(TOY, bad, 0, 0), "the bytes to receive", repr(bad))
        refused(lambda bad=bad: time_of(TOY, 0, bad, 0), "the bytes to send", repr(bad))
        refused(lambda bad=bad: time_of(TOY, 0, 0, bad), "the MACs", repr(bad))
        refused(lambda bad=bad: Timing(0, bad, 0), "the seconds of compute", repr(bad))


@given(TIMINGS)
def test_without_a_deadline_the_slowest_ends_the_round(timings):
    clock = round_clock(timings)
    assert clock.finished == tuple(sorted(timings))
    assert clock.dropped == ()
    assert clock.seconds == max((timing.total for timing in timings.values()), default=0)


@given(TIMINGS, st.floats(1e-3, 3e6))
def test_with_a_deadline(timings, deadline):
    clock = round_clock(timings, deadline)
    assert sorted(clock.finished + clock.dropped) == sorted(timings)
    assert all(timings[client].total <= deadline for client in clock.finished)
    assert all(timings[client].total > deadline for client in clock.dropped)
    assert list(clock.finished) == sorted(clock.finished)
    assert list(clock.dropped) == sorted(clock.dropped)
    assert clock.seconds == min(deadline, round_clock(timings).seconds)
    assert clock.seconds <= round_clock(timings, deadline * 2).seconds


@given(TIMINGS)
def test_a_deadline_that_all_keep_changes_nothing(timings):
    slowest = round_clock(timings).seconds
    assume(slowest > 0)
    assert round_clock(timings, slowest) == round_clock(timings)


@given(TIMINGS, st.integers(1, 12), st.none() | st.floats(1e-3, 3e6))
def test_a_round_that_waits_for_the_first_ends_with_them(timings, first, deadline):
    clock, all_ = round_clock(timings, deadline, first), round_clock(timings, deadline)
    if len(all_.finished) < first or len(timings) <= first:
        assert clock == all_
        return
    assert len(clock.finished) == first
    assert sorted(clock.finished + clock.ignored) == sorted(timings)
    slowest = max(timings[client].total for client in clock.finished)
    assert clock.seconds == slowest <= min(timings[client].total for client in clock.ignored)
    assert clock.dropped == ()


def test_nobody_and_everybody_late():
    assert round_clock({}) == round_clock({}, deadline=9) == RoundClock(0.0, (), ())
    assert round_clock({5: Timing(9, 9, 9), 2: Timing(0, 10, 0)}, 8) == RoundClock(8.0, (), (2, 5))
    for bad in (0, -1, math.nan, math.inf, "soon"):
        refused(lambda bad=bad: round_clock({}, bad), "the deadline in seconds", "above 0", repr(bad))
