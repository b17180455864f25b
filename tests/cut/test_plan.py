"""`Plan` as a value that travels, and the pickers that fill it."""

import copy
import json
import math
import os
import pickle
import random as random_numbers
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import nn

import nestling
from nestling import Plan, extract, importance
from nestling.cut.pick import by_importance, by_mask, prefix, random, rolling
from nestling.nets import build, example
from tests.cut.cut_cases import KINDS, LAWS, NETS, PLANS, SEEDS, case, kept_of, random_plan, state_of, units

AXIS_NAMES = st.text(min_size=1, max_size=20)
INDEX_SETS = st.sets(st.integers(0, 60), min_size=1, max_size=20)
CONTENTS = st.tuples(
    st.dictionaries(AXIS_NAMES, INDEX_SETS, max_size=4), st.none() | st.sets(st.text(max_size=12), max_size=4)
)
KEYS = st.just("") | st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.+\-]{0,30}", fullmatch=True)


def runs_of(indices):
    """Runs of neighbours, the slow way."""
    indices = sorted(indices)
    starts = [i for i in indices if i - 1 not in indices]
    stops = [i + 1 for i in indices if i + 1 not in indices]
    return tuple(zip(starts, stops, strict=True))


# ---- the value


@LAWS
@given(content=CONTENTS, key=KEYS, order=st.randoms(use_true_random=False))
def test_runs_are_canonical_whatever_the_order_and_type_of_the_indices(content, key, order):
    axes, blocks = content
    plan = Plan(axes, blocks, key)
    shuffled = {}
    for name in order.sample(sorted(axes), len(axes)):
        values = order.sample(sorted(axes[name]), len(axes[name]))
        shuffled[name] = order.choice([list, tuple, iter, torch.tensor, np.array])(values)
    other = Plan(shuffled, None if blocks is None else order.sample(sorted(blocks), len(blocks)) * 2, key)
    assert plan.runs == other.runs == {name: runs_of(kept) for name, kept in axes.items()}
    assert list(plan.runs) == sorted(axes)
    assert plan == other
    assert hash(plan) == hash(other)
    assert plan.key == other.key
    assert plan.blocks == (None if blocks is None else tuple(sorted(blocks)))
    for name, kept in axes.items():
        assert plan.index(name).tolist() == sorted(kept)


@LAWS
@given(content=CONTENTS, key=KEYS)
def test_json_round_trip(content, key):
    plan = Plan(*content, key)
    for text in (plan.to_json(), plan.to_json().encode()):
        again = Plan.from_json(text)
        assert again == plan
        assert again.key == plan.key
        assert again.to_json() == plan.to_json()
        assert hash(again) == hash(plan)
    assert json.loads(plan.to_json()).keys() == {"axes", "blocks", "key"}


@pytest.mark.parametrize("name", NETS)
@LAWS
@given(which=PLANS)
def test_a_plan_that_travelled_cuts_the_same(name, which):
    it = case(name)
    plan = random_plan(it.axes, *which)
    for again in (Plan.from_json(plan.to_json()), pickle.loads(pickle.dumps(plan)), copy.deepcopy(plan)):
        assert again == plan
        assert kept_of(again) == kept_of(plan)
        small = extract(it.axes, again, it.model.state_dict())
        assert [t.shape for t in small.values()] == [
            t.shape for t in extract(it.axes, plan, it.model.state_dict()).values()
        ]


@LAWS
@given(one=CONTENTS, other=CONTENTS)
def test_plans_are_equal_when_content_and_key_are(one, other):
    assume(one != other)
    assert Plan(*one) != Plan(*other)
    assert Plan(*one).digest != Plan(*other).digest
    assert Plan(*one, "same") != Plan(*other, "same")
    assert Plan(*one, "k") != Plan(*one, "l")
    assert Plan(*one) != "plan"
    assert len({Plan(*one), Plan(*one), Plan(*other)}) == 2


def test_the_default_key_is_a_digest_of_the_content_alone():
    plan = Plan({"a": [0, 1], "b": [3]}, ["x"])
    assert plan.key == plan.digest == Plan({"b": [3], "a": [1, 0]}, ["x", "x"]).key
    assert len(plan.key) == 12
    assert set(plan.key) <= set("0123456789abcdef")
    assert Plan({"a": [0, 1]}, key="k").digest == Plan({"a": [0, 1]}).digest
    assert Plan(blocks=[]).key != Plan().key  # no blocks is not all blocks


def test_keys_of_plans_made_by_width():
    axes = case("resnet18").axes
    assert nestling.plan(axes).key == nestling.plan(axes, 1).key == "full"
    assert nestling.plan(axes, 0.5).key == "w0.5"
    # a window that moves and a set drawn anew are the same kind of sub-model every round
    assert {nestling.plan(axes, 0.5, "rolling", round=k).key for k in range(9)} == {"w0.5"}
    assert {nestling.plan(axes, 0.5, "random", seed=k).key for k in range(9)} == {"w0.5"}
    blocks = list(axes.blocks)
    keys = {nestling.plan(axes, 0.5, blocks=blocks[:k]).key for k in range(1, len(blocks))}
    assert len(keys) == len(blocks) - 1
    assert not keys & {"w0.5", "full"}
    assert nestling.plan(axes, 0.5, key="mine").key == "mine"


def test_widths_that_keep_different_numbers_have_different_keys():
    """Plans with equal keys share private state, whose shapes must agree."""
    net = nn.Sequential(nn.Linear(2, 9), nn.Linear(9, 2))
    axes = nestling.trace(net, torch.zeros(1, 2))
    one, other = nestling.plan(axes, 1 / 3), nestling.plan(axes, 0.3333334)
    assert [len(plan.index("model.0")) for plan in (one, other)] == [3, 4]
    assert one.key != other.key


@pytest.mark.parametrize("width", [1 / 16, 0.25, 0.5, 0.9])
def test_json_of_a_rolling_plan_is_small(width):
    with torch.device("meta"):
        net = build("preresnet18")
    axes = nestling.trace(net, *example("preresnet18", batch=1))
    names = sum(len(name) for name in axes.axes)
    for turn in (0, 1, 37, 500, 511):
        text = nestling.plan(axes, width, "rolling", round=turn).to_json()
        assert len(text) <= names + 40 * len(axes.axes) + 40
        assert len(text) < 1500  # of a model of eleven million parameters


def test_repr_is_short():
    it = case("resnet110")
    for plan in (Plan(), random_plan(it.axes, 3), nestling.plan(it.axes, 0.5, "random", seed=3)):
        assert plan.key in repr(plan)
        assert len(repr(plan)) < 300
        assert "\n" not in repr(plan)


# ---- plan()


@pytest.mark.parametrize(
    ("width", "size", "count"),
    [
        (0.07, 100, 7),
        (0.14, 50, 7),
        (0.55, 100, 55),
        (0.57, 100, 57),
        (0.29, 100, 29),
        (1 / 3, 3, 1),
        (1 / 3, 9, 3),
        (2 / 3, 9, 6),
        (0.1 + 0.2, 10, 3),
        (0.5, 7, 4),
        (1 / 16, 64, 4),
        (1 / 16, 8, 1),
        (1e-9, 512, 1),
        (1e-300, 512, 1),
        (0.999999, 8, 8),
        (math.sqrt(0.2), 64, 29),
        (math.sqrt(0.34), 512, 299),
        (1, 5, 5),
    ],
)
def test_ceil(width, size, count):
    net = nn.Sequential(nn.Linear(2, size), nn.Linear(size, 2))
    plan = nestling.plan(nestling.trace(net, torch.zeros(1, 2)), width)
    assert plan.runs == ({} if count == size else {"model.0": ((0, count),)})


@LAWS
@given(parts=st.integers(1, 400), size=st.integers(1, 400))
def test_a_share_written_as_a_fraction_keeps_exactly_that_many(parts, size):
    assume(parts <= size)
    net = nn.Sequential(nn.Linear(1, size), nn.Linear(size, 1))
    axes = nestling.trace(net, torch.zeros(2, 1)) if size > 1 else None
    assume(axes is not None)
    (axis,) = axes.axes
    plan = nestling.plan(axes, parts / size)
    assert (len(plan.index(axis)) if plan.runs else size) == parts


@pytest.mark.parametrize("name", NETS)
def test_full_width_keeps_everything(name):
    plan = nestling.plan(case(name).axes)
    assert plan.runs == {}
    assert plan.blocks is None
    assert plan == Plan(key="full")


@pytest.mark.parametrize("name", ["attention", "fused-view", "fused-chunk", "vit-tiny", "transformer-mlm", "grouped"])
def test_heads_and_groups_stay_whole_unless_they_are_named(name):
    axes = case(name).axes
    assert axes.groups
    for width in (0.5, {"*": 0.5}):
        plan = nestling.plan(axes, width)
        assert not axes.groups & set(plan.runs)
        assert set(plan.runs) == {axis for axis, size in axes.axes.items() if axis not in axes.groups and size > 1}
    for pattern in ("*heads", "*groups"):
        if any(axis.endswith(pattern[1:]) for axis in axes.groups):
            plan = nestling.plan(axes, {pattern: 0.5})
            assert set(plan.runs) == axes.groups
            for axis in axes.groups:
                assert len(plan.index(axis)) == math.ceil(axes.axes[axis] / 2)
    for axis in axes.groups:
        assert set(nestling.plan(axes, {axis: 0.5}).runs) == {axis}


def test_width_by_pattern_first_match_wins():
    axes = case("resnet18").axes
    plan = nestling.plan(axes, {"stem.conv": 0.25, "stages.0.*": 0.5, "stages.*.conv1": 0.25, "stem*": 1.0})
    assert len(plan.index("stem.conv")) == 1
    assert len(plan.index("stages.0.0.body.conv1")) == 2
    assert len(plan.index("stages.3.1.body.conv1")) == 4
    assert "stages.3.0.body.conv2" not in plan.runs


def test_blocks_by_pattern():
    axes = case("resnet18").axes
    assert nestling.plan(axes, blocks=["stages.0.*", "stages.3.1"]).blocks == ("stages.0.0", "stages.0.1", "stages.3.1")
    assert nestling.plan(axes, blocks="stages.0.*").blocks == ("stages.0.0", "stages.0.1")
    assert nestling.plan(axes, blocks=["*"]).blocks is None
    assert nestling.plan(axes, blocks=[]).blocks == ()
    assert nestling.plan(axes, blocks=["*"]) == nestling.plan(axes)


# ---- pickers


@LAWS
@given(size=st.integers(1, 200), data=st.data())
def test_every_picker_keeps_as_many_different_units_as_it_is_asked_for(size, data):
    count = data.draw(st.integers(1, size))
    turn, step, seed = (data.draw(st.integers(0, 10**6)) for _ in range(3))
    scores = torch.randn(size, generator=torch.Generator().manual_seed(seed))
    for pick in (prefix, rolling(turn, step), random(seed), by_importance({"a": scores})):
        kept = list(pick("a", size, count))
        assert len(kept) == len(set(kept)) == count
        assert all(0 <= unit < size for unit in kept)
    assert list(prefix("a", size, count)) == list(range(count))
    assert set(rolling(turn, step)("a", size, count)) == {(turn * step + k) % size for k in range(count)}
    chosen = by_importance({"a": scores})("a", size, count)
    rest = sorted(set(range(size)) - set(chosen))
    assert not rest or scores[list(chosen)].min() >= scores[rest].max()


def test_prefixes_are_nested():
    axes = case("resnet18").axes
    plans = [nestling.plan(axes, width) for width in (0.0625, 0.125, 0.25, 0.5, 1.0)]
    for small, large in pairwise(plans):
        for axis, size in axes.axes.items():
            inner, outer = (kept_of(plan).get(axis, list(range(size))) for plan in (small, large))
            assert set(inner) <= set(outer)


def test_random_sets_differ_by_seed_and_by_axis_but_not_by_width_of_others():
    axes = case("resnet34").axes
    plans = [nestling.plan(axes, 0.5, "random", seed=seed) for seed in range(6)]
    assert len(set(plans)) == 6
    twins = [axis for axis, size in axes.axes.items() if size == 16]
    assert len(twins) > 2
    assert len({plans[0].runs[axis] for axis in twins}) > 1
    alone = nestling.plan(axes, {twins[0]: 0.5}, "random", seed=0)
    assert alone.runs[twins[0]] == plans[0].runs[twins[0]]


def test_random_sets_are_fair():
    axes = case("mlp").axes
    counts = torch.zeros(6)
    for seed in range(600):
        counts[nestling.plan(axes, 0.5, "random", seed=seed).index("linear1")] += 1
    assert counts.min() > 230  # 300 expected, a standard deviation of 12
    assert counts.max() < 370


@pytest.mark.slow
def test_random_sets_are_the_same_in_every_process():
    """Whatever the hash seed: a device and the server draw the same plan from the same words."""
    code = (
        "from tests.cut.cut_cases import case; import nestling; "
        "print(nestling.plan(case('vit-tiny').axes, 0.5, 'random', seed=7).to_json())"
    )
    here = nestling.plan(case("vit-tiny").axes, 0.5, "random", seed=7).to_json()
    run = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONHASHSEED": "12345", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert run.stdout.strip() == here


def test_random_sets_are_these():
    """Recorded, so that a checkpoint of today draws the same plans tomorrow."""
    assert sorted(random(seed=7)("conv1", 16, 5)) == [8, 10, 12, 14, 15]


def test_ties_in_importance_go_to_the_first():
    pick = by_importance({"a": torch.tensor([1.0, 3.0, 3.0, 1.0, 3.0, 1.0])})
    assert sorted(pick("a", 6, 2)) == [1, 2]
    assert sorted(pick("a", 6, 4)) == [0, 1, 2, 4]
    assert sorted(by_importance({"a": torch.zeros(5000)})("a", 5000, 3)) == [0, 1, 2]
    assert sorted(by_importance({"a": torch.tensor([2, 1, 3])})("a", 3, 2)) == [0, 2]
    wide = by_importance({"a": torch.tensor([float("inf"), 1.0, float("-inf")])})
    assert sorted(wide("a", 3, 2)) == [0, 1]


def test_mask_keeps_what_is_true_whatever_the_width():
    axes = case("flatten").axes
    mask = {"model.0": torch.tensor([True, False, True, True, False, False])}
    for width in (1.0, 0.1):
        plan = nestling.plan(axes, width, "mask", mask=mask)
        assert kept_of(plan) == {"model.0": [0, 2, 3]}
    assert nestling.plan(axes, pick="mask", mask={"model.0": torch.ones(6, dtype=torch.bool)}) == Plan(key="full")
    assert by_mask(mask)("model.3", 7, 2) == range(7)


def test_a_picker_of_ones_own():
    axes = case("flatten").axes
    plan = nestling.plan(axes, 0.5, lambda name, size, count: range(size - count, size))
    assert kept_of(plan) == {"model.0": [3, 4, 5], "model.3": [3, 4, 5, 6]}


# ---- importance


@pytest.mark.parametrize("name", ["flatten", "joined", "fused-view", "fused-chunk", "tied", "gru", "grouped", "cnn"])
@pytest.mark.parametrize("power", [1.0, 2.0])
def test_importance_is_what_a_unit_takes_away_with_it(name, power):
    """Silence a unit everywhere, count what is gone: that is its score (a square counts its row and its column)."""
    it = case(name)
    state = state_of(it, torch.float64)
    scores = importance(it.axes, state, power)
    assert {axis: tuple(score.shape) for axis, score in scores.items()} == {a: (n,) for a, n in it.axes.axes.items()}
    for axis, size in it.axes.axes.items():
        for unit in range(size):
            total = 0.0
            for key, dims in it.axes.dims.items():
                if key in it.axes.tied or not state[key].is_floating_point():
                    continue
                energy = state[key].abs().pow(power)
                for place, dim in enumerate(dims):
                    total += shares(dim, axis, unit, energy.movedim(place, 0).reshape(dim.size, -1).sum(1))
            assert scores[axis][unit].item() == pytest.approx(total, rel=1e-9, abs=1e-12)


def shares(dim, axis, unit, energy):
    """The energy along `dim` at every place whose index names `unit` of `axis`, once per time it is named."""
    if type(dim).__name__ == "Leaf":
        return energy[unit].item() if dim.name == axis else 0.0
    total = 0.0
    if type(dim).__name__ == "Sum":
        at = 0
        for part in dim.parts:
            total += shares(part, axis, unit, energy[at : at + part.size])
            at += part.size
    elif type(dim).__name__ == "Product":
        grid = energy.reshape([part.size for part in dim.parts])
        for place, part in enumerate(dim.parts):
            total += shares(part, axis, unit, grid.movedim(place, 0).reshape(part.size, -1).sum(1))
    return total


def test_importance_keeps_the_strong_units():
    it = case("mlp")
    state = state_of(it)
    for unit in (1, 4):
        state["linear1.weight"][unit] *= 100
    plan = nestling.plan(it.axes, {"linear1": 1 / 3}, "importance", scores=importance(it.axes, state))
    assert kept_of(plan) == {"linear1": [1, 4]}


@LAWS
@given(seed=SEEDS, size=st.integers(1, 30))
def test_the_drawn_plans_of_these_tests_are_what_they_say(seed, size):
    """The strategy itself: sizes of one, windows that wrap, sets with gaps all occur and all fit."""
    for kind in KINDS:
        kept = units(random_numbers.Random(seed), size, kind)
        assert len(set(kept)) == len(kept) >= 1
        assert set(kept) <= set(range(size))
