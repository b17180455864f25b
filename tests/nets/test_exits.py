"""The ResNet with a classifier after every stage: what it computes, and what is left of it without its last stages."""

import functools
import math

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

import nestling
from nestling.cut.resize import axes_of
from nestling.nets import build
from nestling.nets.exits import Exits
from tests.quick import mostly_slow

LAWS = settings(
    deadline=None, derandomize=True, max_examples=15, database=None, phases=[Phase.explicit, Phase.generate]
)
STAGES = ("", "deeper.", "deeper.deeper.", "deeper.deeper.deeper.")
BLOCKS = [path.rstrip(".") for path in STAGES[1:]]
SMALL = {"depths": (1, 2, 1, 1), "widths": (4, 8, 8, 12), "channels": 1}


@functools.cache
def case(norm="bn"):
    """A net in double precision that no test may change, its axes, and an input."""
    torch.manual_seed(0)
    net = Exits(**SMALL, norm=norm).double()
    x = torch.randn(3, 1, 8, 8, dtype=torch.float64)
    for _ in range(3):
        net(x)  # statistics away from their start
    return net.eval(), nestling.trace(net, x), x


def first(count, width=1.0):
    """The plan of the first `count` stages, with the first units of every axis."""
    _, axes, _ = case()
    kept = {name: range(math.ceil(width * size)) for name, size in axes.axes.items() if width < 1}
    return nestling.Plan(kept, blocks=BLOCKS[: count - 1])


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_up_to_its_last_classifier_it_is_the_ordinary_resnet():
    torch.manual_seed(1)
    net = Exits(depths=(1, 2, 1), widths=(4, 8, 8)).double()
    plain = build("resnet18", depths=(1, 2, 1), widths=(4, 8, 8), pool=False, learn_steps=False).double()
    state, weights = net.state_dict(), {}
    for name in plain.state_dict():
        stage, _, inner = name.removeprefix("stages.").partition(".")
        path = f"{STAGES[int(stage)]}blocks.{inner}" if name.startswith("stages.") else name
        weights[name] = state[path.replace("head.", f"{STAGES[2]}exit.head.") if name.startswith("head.") else path]
    plain.load_state_dict(weights)
    x = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    assert torch.equal(net(x)[-1], plain(x))
    rest = {name for name in state if ".exit." in f".{name}" and not name.startswith(STAGES[2])}
    assert len(weights) + len(rest) == len(state)


def test_the_papers_size():
    with torch.device("meta"):
        net = Exits()
    resnet18 = 11_173_962  # FedMorph, Table 2
    bottlenecks = sum(width * 512 + 2 * 512 for width in (64, 128, 256))
    classifiers = 3 * (512 * 10 + 10)
    assert sum(p.numel() for p in net.parameters()) == resnet18 + bottlenecks + classifiers == 11_421_800


@pytest.mark.parametrize("norm", mostly_slow(["bn", "gn", "none"], quick=1))
@pytest.mark.parametrize("depths", [(1, 1), (1, 2, 1, 1)], ids=str)
def test_its_axes_are_proved(norm, depths):
    net = Exits(depths=depths, widths=(4, 8, 8, 12)[: len(depths)], channels=1, norm=norm)
    x = torch.randn(2, 1, 8, 8)
    axes = nestling.trace(net, x)
    report = nestling.check(net, axes, x)
    report.raise_if_bad()
    assert report.coverage > 0.98
    assert list(axes.blocks) == BLOCKS[: len(depths) - 1]
    for block, names in axes.blocks.items():
        assert set(names) == {name for name in axes.dims if name.startswith(f"{block}.")}


def test_one_stage_is_a_net_too():
    net = Exits(depths=(1,), widths=(4,))
    (logits,) = net(torch.zeros(2, 3, 8, 8))
    assert logits.shape == (2, 10)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_without_the_last_stages_the_first_say_the_same(count):
    net, axes, x = case()
    small = nestling.submodel(net, axes, first(count))
    assert same(small.state_dict(), nestling.extract(axes, first(count), net.state_dict()))
    with torch.no_grad():
        whole, left = net(x), small(x)
    assert len(left) == len(whole) == 4
    assert all(torch.equal(a, b) for a, b in zip(left[:count], whole[:count], strict=True))
    assert all(logits is left[count - 1] for logits in left[count:])
    assert len(set(left)) == count


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_a_dropped_stage_is_neither_stored_nor_sent_nor_computed(count):
    net, axes, x = case()
    small = nestling.submodel(net, axes, first(count))
    kept = {name for name in net.state_dict() if name.count("deeper.") < count}
    assert set(small.state_dict()) == kept
    parameters = sum(p.numel() for name, p in net.named_parameters() if name in kept)
    with FlopCounterMode(display=False) as flops:  # by hand: the parts of the whole net that are left
        stream, part = net.stem(x), net
        for _ in range(count):
            stream = part.blocks(stream)
            part.exit(stream)
            part = part.deeper
    cost = nestling.cost(net, axes, first(count), x)
    assert cost.parameters == sum(p.numel() for p in small.parameters()) == parameters
    assert cost.macs == flops.get_total_flops() // 2
    assert cost.bytes == sum(net.state_dict()[name].nbytes for name in kept)


@pytest.mark.parametrize("width", [1.0, 0.5])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_every_classifier_left_learns_and_nothing_else_moves(count, width):
    net, axes, x = case()
    plan = first(count, width)
    small = nestling.submodel(net, axes, plan).train()
    sum(logits.square().sum() for logits in set(small(x))).backward()
    with torch.no_grad():
        for parameter in small.parameters():
            assert parameter.grad.any()
            parameter.sub_(0.01 * parameter.grad)
    state = net.state_dict()
    tally = nestling.Tally(axes, state)
    tally.add(small.state_dict(), plan)
    merged = tally.value()
    for name, tensor in merged.items():
        if name.count("deeper.") >= count:
            assert torch.equal(tensor, state[name])  # nobody held it
        else:
            assert torch.equal(nestling.extract(axes, plan, merged)[name], small.state_dict()[name])


@LAWS
@given(
    fleet=st.lists(
        st.tuples(st.sets(st.sampled_from(BLOCKS)), st.sampled_from([0.3, 0.5, 1.0]), st.floats(0.1, 9)),
        min_size=1,
        max_size=4,
    )
)
def test_any_set_of_stages_is_a_net_that_ends_at_the_first_gap(fleet):
    net, axes, x = case()
    state = net.state_dict()
    tally = nestling.Tally(axes, state)
    for blocks, width, weight in fleet:
        plan = nestling.Plan({name: range(math.ceil(width * size)) for name, size in axes.axes.items()}, blocks=blocks)
        small = nestling.submodel(net, axes, plan)
        assert same(small.state_dict(), nestling.extract(axes, plan, state))
        depth = next((k for k, block in enumerate(BLOCKS) if block not in blocks), len(BLOCKS))
        assert max(name.count("deeper.") for name in small.state_dict()) == depth
        with torch.no_grad():
            left = small(x)
        assert [logits.shape for logits in left] == [(3, 10)] * 4
        assert len(set(left)) == depth + 1
        axes_left = axes_of(axes, plan)
        assert set(axes_left.blocks) == set(BLOCKS[:depth])  # what is inside a dropped stage is gone with it
        with torch.no_grad():
            again = nestling.submodel(small, axes_left, nestling.plan(axes_left, blocks=[]))(x)
        assert len(again) == 4
        assert all(torch.equal(logits, left[0]) for logits in again)
        tally.add(small.state_dict(), plan, weight)
    assert same(tally.value(), state)
