"""Which slice a client gets: what the papers say, for nets of every kind and for axes of any size."""

import math
from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

import nestling
from nestling import Plan
from nestling.errors import PlanError
from nestling.methods import make, names
from nestling.nets import example
from tests.harness import plan_of, submodel_plan_of
from tests.methods.method_cases import LAWS, NETS, OPTIONS, axes_of, net_of

SIZES = st.lists(st.integers(1, 24), min_size=1, max_size=2).map(tuple)
RATIOS = st.sampled_from([1.0, 1 / 2, 1 / 4, 1 / 8, 1 / 16]) | st.floats(0.01, 1)
WHOLE = ["fedavg", "fedprox", "lg-fedavg"]
PREFIX = ["heterofl", "fjord", "standalone"]


def kept(plan, axes):
    """Every axis that can be cut → the units kept, in a list."""
    return {
        name: plan.index(name).tolist() if name in plan.runs else list(range(size)) for name, size in axes.axes.items()
    }


def count(ratio, size):
    return max(1, math.ceil(round(ratio * size, 9)))


@pytest.mark.parametrize("name", WHOLE)
def test_methods_that_train_the_whole_model(name):
    method = make(name)
    assert not method.plan.by_level
    for net in NETS:
        for ratio in (1.0, 1 / 16):
            assert plan_of(method, net_of(net)[1], ratio) == Plan(key="full")


@pytest.mark.parametrize("ratio", [1.0, 0.5, 0.3, 1 / 16])
@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("name", PREFIX)
def test_methods_that_train_the_first_units(name, net, ratio):
    axes = net_of(net)[1]
    method = make(name)
    plans = {plan_of(method, axes, ratio, round, client) for round in (1, 2, 9) for client in (0, 5)}
    assert plans == {submodel_plan_of(method, axes, ratio)}  # what is trained is what is handed out
    for axis, units in kept(plans.pop(), axes).items():
        size = axes.axes[axis]
        assert units == list(range(size if axis in axes.groups else count(ratio, size)))


_OWN = ("depthfl", "nefl", "fedpruned", "fedmorph", "fedmorphprox", "lora")  # plans of another kind


@pytest.mark.parametrize("name", [name for name in names() if name not in _OWN])
def test_everybody_can_be_given_everything_and_every_level_a_prefix(name):
    method = make(name)
    for net in NETS:
        axes = net_of(net)[1]
        assert plan_of(method, axes, 1.0, round=7) == Plan(key="full")
        assert submodel_plan_of(method, axes, 0.4) == nestling.plan(axes, 0.4)


@pytest.mark.parametrize("name", ["heterofl", "fedrolex", "fed-dropout"])
@pytest.mark.parametrize("net", NETS)
def test_slices_are_models_that_run(name, net):
    model, axes = net_of(net)
    for round in (1, 4):
        plan = plan_of(make(name), axes, 0.3, round)
        small = nestling.submodel(model, axes, plan).train()
        outputs = small(*example(net, **OPTIONS[net]))
        outputs.sum().backward()
        assert torch.isfinite(outputs).all()


# ---- FedRolex


@LAWS
@given(SIZES, RATIOS, st.integers(1, 60), st.integers(0, 30), st.integers(0, 9))
def test_the_window_starts_one_step_further_each_round_and_wraps_around(sizes, ratio, round, step, client):
    axes = axes_of(*sizes)
    actual = kept(plan_of(make("fedrolex", {"step": step}), axes, ratio, round, client), axes)
    for axis, size in axes.axes.items():
        start = (round - 1) * step % size
        assert actual[axis] == sorted((start + k) % size for k in range(count(ratio, size)))


@LAWS
@given(SIZES, st.lists(RATIOS, min_size=1, max_size=3), st.integers(1, 7), st.integers(1, 50))
def test_over_a_period_every_unit_is_trained_equally_often(sizes, ratios, step, first):
    assume(all(math.gcd(step, size) == 1 for size in sizes))
    axes = axes_of(*sizes)
    method = make("fedrolex", {"step": step})
    for axis, size in axes.axes.items():
        often = Counter()
        for round in range(first, first + size):  # wherever the period begins
            for client, ratio in enumerate(ratios):
                often.update(kept(plan_of(method, axes, ratio, round, client), axes)[axis])
        assert set(often.values()) == {sum(count(ratio, size) for ratio in ratios)}
        assert len(often) == size


@pytest.mark.parametrize("net", NETS)
def test_windows_roll_inside_every_head_and_along_every_stream(net):
    model, axes = net_of(net)
    plan = plan_of(make("fedrolex"), axes, 0.5, round=3)
    for axis, units in kept(plan, axes).items():
        size = axes.axes[axis]
        if axis in axes.groups:
            assert units == list(range(size))
        else:
            assert units == sorted((2 + k) % size for k in range(count(0.5, size)))
    if net == "vit-tiny":  # three heads of four: of each, units 2 and 3
        numbers = {name: torch.zeros_like(tensor) for name, tensor in model.state_dict().items()}
        name = "blocks.0.attention.body.attention.q.bias"
        numbers[name] = torch.arange(12.0)
        assert nestling.extract(axes, plan, numbers)[name].tolist() == [2, 3, 6, 7, 10, 11]


@LAWS
@given(SIZES, RATIOS, st.integers(1, 99))
def test_a_window_that_stands_still_is_heterofl(sizes, ratio, round):
    axes = axes_of(*sizes)
    still, hetero = make("fedrolex", {"step": 0}), make("heterofl")
    first = plan_of(hetero, axes, ratio, round)
    assert plan_of(still, axes, ratio, round) == first
    assert plan_of(make("fedrolex"), axes, ratio, round=1) == first
    assert replace(still, name="heterofl", plan=hetero.plan) == hetero


# ---- Federated Dropout


def test_random_sets_differ_by_client_and_round_and_come_again():
    axes, method = net_of("preresnet18")[1], make("fed-dropout")
    turns = [(round, client) for round in range(1, 6) for client in range(6)]
    plans = [plan_of(method, axes, 0.5, *turn) for turn in turns]
    assert len(set(plans)) == len(plans)
    assert plans == [plan_of(method, axes, 0.5, *turn) for turn in turns]
    assert plan_of(method, axes, 0.5, seed=1) != plan_of(method, axes, 0.5, seed=2)
    for plan in plans:
        for axis, units in kept(plan, axes).items():
            assert len(units) == len(set(units)) == count(0.5, axes.axes[axis])


def test_axes_of_one_size_are_drawn_apart():
    axes = axes_of(20, 20)
    same = [
        len(set(map(tuple, kept(plan_of(make("fed-dropout"), axes, 0.5, round), axes).values()))) == 1
        for round in range(1, 20)
    ]
    assert not any(same)


def test_every_unit_is_as_likely_as_any_other():
    axes = axes_of(10)
    axis = next(iter(axes.axes))
    often = Counter()
    for client in range(2000):
        often.update(kept(plan_of(make("fed-dropout"), axes, 0.3, 1, client), axes)[axis])
    expected = 2000 * 0.3
    chi = sum((often[unit] - expected) ** 2 / expected for unit in range(10))
    assert chi < 40  # nine degrees of freedom: once in 100,000


@pytest.mark.parametrize("ratio", [0, -1, 1.5, math.nan])
@pytest.mark.parametrize("name", ["heterofl", "fedrolex", "fed-dropout", "fjord", "standalone"])
def test_no_such_ratio(name, ratio):
    with pytest.raises(PlanError, match="above 0 and at most 1"):
        plan_of(make(name), axes_of(4), ratio)
