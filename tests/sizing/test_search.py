"""The largest sub-model within a budget: limits are never exceeded, and the next plan of the path exceeds one."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.profiler import ProfilerActivity, profile

import nestling
from nestling import submodel
from nestling.budgets import Budget, parse_budget
from nestling.errors import BudgetError
from nestling.nets import build, example
from nestling.sizing import BalancedPath, fit, largest_plan, plan_path, step_seconds
from nestling.sizing.search import model_meter
from tests.cut.cut_cases import LAWS, NETS, RESIDUAL, case
from tests.quick import mostly_slow

BY = st.sampled_from(["balanced", "width", "depth"])
SEEDS = st.integers(0, 10**6)


def rows(it):
    return len(it.example)


def path_of(it, by):
    return plan_path(it.axes, by if it.axes.blocks else "width" if by == "depth" else by)


@pytest.mark.parametrize("name", mostly_slow(NETS[::3], quick=1))
@settings(LAWS, max_examples=2)
@given(seed=SEEDS, by=BY)
def test_no_limit_is_exceeded_and_the_next_plan_exceeds_one(name, seed, by):
    it, draw = case(name), random.Random(seed)
    path, meter = path_of(it, by), model_meter(it.model, it.axes, it.example, batch=rows(it))
    low, high = meter.measured(path.plan(0), 0), meter.measured(path.plan(path.steps), 1)
    limits = {
        field: draw.uniform(getattr(low, field), getattr(high, field) * 1.1)
        for field in draw.sample(["bytes", "macs", "memory"], draw.randint(1, 3))
    }
    budget = Budget(**limits)
    result = largest_plan(path, meter, budget)
    small = submodel(it.model, it.axes, result.plan)
    tensors = {tensor.data_ptr(): tensor.nbytes for tensor in small.state_dict().values() if tensor.numel()}
    assert sum(tensors.values()) == result.bytes <= limits.get("bytes", result.bytes)
    cost = nestling.cost(it.model, it.axes, result.plan, it.example)
    assert cost.macs <= limits.get("macs", cost.macs) * rows(it)
    assert cost.memory <= limits.get("memory", cost.memory)
    if isinstance(path, BalancedPath):
        step = next(step for step in range(path.steps + 1) if path.plan(step) == result.plan)
        following = path.plan(step + 1) if step < path.steps else None
    else:
        following = path.plan(round(result.ratio * 10_000)) if result.ratio < 1 else None
    assert following is None or meter.measured(following, 0).exceeded(budget)


@pytest.mark.parametrize("name", mostly_slow(RESIDUAL[::2], quick=2))
@settings(LAWS, max_examples=2)
@given(seed=SEEDS)
def test_the_plans_of_a_path_are_nested_and_run(name, seed):
    it, draw = case(name), random.Random(seed)
    path = BalancedPath(it.axes)
    small, large = sorted(draw.choices(range(path.steps + 1), k=2))
    inner, outer = path.plan(small), path.plan(large)
    for axis, size in it.axes.axes.items():
        assert inner.sizes.get(axis, size) <= outer.sizes.get(axis, size)
    blocks = [set(it.axes.blocks if plan.blocks is None else plan.blocks) for plan in (inner, outer)]
    assert blocks[0] <= blocks[1]
    assert path.ratio(small) <= path.ratio(large)
    submodel(it.model, it.axes, path.plan(0))(it.example)  # even the smallest runs
    submodel(it.model, it.axes, inner)(it.example)


def test_each_step_of_the_balanced_path_adds_one_unit_or_one_block():
    axes = case("resnet18").axes
    path = BalancedPath(axes)
    sizes = [
        sum(path.plan(step).sizes.get(name, size) for name, size in axes.axes.items())
        + len(axes.blocks if path.plan(step).blocks is None else path.plan(step).blocks)
        for step in range(path.steps + 1)
    ]
    assert sizes == list(range(sizes[0], sizes[0] + path.steps + 1))


def test_width_and_depth_take_equal_shares():
    """At half of the width a quarter of a layer is left, and so a quarter of the blocks."""
    with torch.device("meta"):
        net = build("resnet110", depths=(18, 3, 2))
    axes = nestling.trace(net, *example("resnet110", batch=1))
    path = BalancedPath(axes)
    half = next(step for step in range(path.steps) if path.ratio(step) >= 0.5)
    plan = path.plan(half)
    assert set(plan.sizes.values()) == {8, 16, 32}
    assert [sum(name.startswith(f"stages.{k}.") for name in plan.blocks) for k in range(3)] == [
        5,
        1,
        1,
    ]  # of 18, 3 and 2


def test_blocks_inside_others_go_with_them():
    net = build("resnet18-exits", widths=(4, 4, 4, 4))
    (x,) = example("resnet18-exits")
    axes = nestling.trace(net, x)
    path = plan_path(axes, "depth")
    kept = [path.plan(step).blocks for step in range(path.steps)]
    assert [len(blocks) for blocks in kept] == list(range(len(axes.blocks)))
    for step in range(path.steps + 1):
        submodel(net, axes, path.plan(step))(x)


def test_the_measured_peak_of_a_step_is_within_the_limit_of_memory():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 400), nn.ReLU(), nn.Linear(400, 400), nn.ReLU(), nn.Linear(400, 10))
    x = torch.randn(128, 64)
    axes = nestling.trace(net, x)
    limit = 1_000_000
    result = fit(net, axes, f"{limit} B memory", x, batch=128)
    assert 0.95 * limit < result.memory <= limit
    small = submodel(net, axes, result.plan)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        small(x).sum().backward()
    events = profiler.profiler.kineto_results.events()
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    peak = now = sum(parameter.nbytes for parameter in small.parameters()) + x.nbytes
    for _, change in changes:
        now += change
        peak = max(peak, now)
    assert changes
    assert peak <= limit


def test_time_is_limited_too():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    x = torch.randn(1, 64)
    axes = nestling.trace(net, x)
    result = fit(net, axes, "60 s, 10 kB", x)
    assert 0 < result.seconds < 60
    assert result.bytes <= 10_000
    with pytest.raises(BudgetError, match=r"the smallest possible has .* ms|the smallest possible has .* s;"):
        fit(net, axes, "0.00001 us", x)


def test_time_decides_among_plans_that_meet_the_other_limits():
    """With times that are given, not measured: one microsecond for every unit."""
    net = nn.Sequential(nn.Linear(4, 100), nn.ReLU(), nn.Linear(100, 2))
    x = torch.zeros(1, 4)
    axes = nestling.trace(net, x)
    meter = model_meter(net, axes, x)
    timed = []

    def seconds(plan, limit):
        timed.append(plan.sizes.get("model.0", 100))
        return timed[-1] * 1e-6

    meter = type(meter)(meter.costs, meter.batch, seconds)
    result = largest_plan(BalancedPath(axes), meter, parse_budget("1 kB, 0.0205 ms"))
    assert result.plan.sizes == {"model.0": 20}
    assert result.seconds == pytest.approx(20e-6)
    assert max(timed) == 35  # 36 units are more than 1 kB
    assert len(timed) == len(set(timed)) <= 8


def test_a_model_that_is_far_too_slow_is_not_run_twenty_times():
    net, runs = nn.Linear(2, 2), []
    net.register_forward_hook(lambda *_: runs.append(0))
    assert step_seconds(net, torch.ones(1, 2), limit=1e-12) > 0
    assert len(runs) == 4
    step_seconds(net, torch.ones(1, 2), limit=60)
    assert len(runs) == 4 + 3 + 20


def test_a_budget_that_cannot_be_met_says_the_smallest_possible():
    it = case("cnn")
    with pytest.raises(BudgetError) as caught:
        fit(it.model, it.axes, "10 B", it.example, batch=2)
    smallest = BalancedPath(it.axes).plan(0)
    bytes_ = nestling.cost(it.model, it.axes, smallest, it.example).bytes
    assert f"no sub-model meets the budget 10 B: the smallest possible has {bytes_} B;" in str(caught.value)


def test_a_budget_that_the_whole_model_meets_gives_the_whole_model():
    it = case("cnn")
    assert fit(it.model, it.axes, "1 GB", it.example).plan == nestling.Plan(key="full")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the budget '' cannot be read"),
        ("2", "the budget '2' cannot be read: write a number and a unit, such as '2 MB'"),
        ("-2 MB", "cannot be read"),
        ("2 MB, 3 MB", "the budget limits bytes twice"),
        ("5 ms memory", "cannot be read"),
        ("0 MB", "must be above 0"),
        ("1e999 MB", "cannot be read"),
        ([], "at least one limit"),
        ([3], "a budget is a text"),
    ],
)
def test_budgets_that_are_refused(text, message):
    with pytest.raises(BudgetError, match=message):
        parse_budget(text)


@given(
    st.lists(
        st.tuples(st.floats(0.01, 900).map(lambda value: round(value, 2)), st.sampled_from(["kB", "MMACs", "ms"])),
        min_size=1,
        max_size=3,
        unique_by=lambda part: part[1],
    )
)
def test_budgets_are_written_and_read(parts):
    budget = parse_budget([f"{number} {unit}" for number, unit in parts])
    again = parse_budget(str(budget))
    for field in ("bytes", "macs", "memory", "seconds"):
        before, after = getattr(budget, field), getattr(again, field)
        assert before == after or after == pytest.approx(before, rel=1e-9)
