"""Soft masks: a network with masks of zeros and ones is the pruned network, and its size is that one's."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call

import nestling
from nestling.cut import Plan
from nestling.methods.fedmorph.distill import Distillation, divergence, soft
from nestling.methods.fedmorph.soft_masks import Masks, initial, kept, maskable, positions
from nestling.nets import build

NETS = {
    "resnet8": ({"widths": [4, 6, 8, 8], "size": 8}, (2, 1, 8, 8)),
    "resnet18": ({"widths": [4, 6, 8, 8], "learn_steps": False}, (2, 3, 16, 16)),
    "vgg16": ({"widths": [[4, 5], [4], [6, 3], [8], [8]]}, (2, 3, 32, 32)),
    "cnn": ({"widths": [4, 6, 8, 8]}, (2, 1, 16, 16)),
    "preresnet18": ({"widths": [4, 6, 8, 8]}, (2, 3, 16, 16)),
    "mlp": ({}, (2, 1, 8, 8)),
}


def net_of(name):
    options, shape = NETS[name]
    options = {key: value for key, value in options.items() if key in nestling.nets.MODELS[name].options}
    if name != "mlp":
        options["channels"] = shape[1]
    else:
        options |= {"channels": 1, "size": 8}
    torch.manual_seed(1)
    net = build(name, **options).double()
    for tensor in (*net.parameters(), *net.buffers()):
        if tensor.is_floating_point():
            tensor.data.uniform_(0.1, 1).mul_(torch.randint_like(tensor, 2) * 2 - 1 if tensor.requires_grad else 1)
    return net.eval(), torch.randn(shape, dtype=torch.float64)


@pytest.mark.parametrize("name", NETS)
def test_masks_of_zeros_and_ones_are_the_pruned_network(name):
    net, inputs = net_of(name)
    axes = nestling.trace(net, inputs)
    masks = Masks(axes, frozenset(name for name, _ in net.named_parameters()))
    stream = torch.Generator().manual_seed(3)
    scores = initial(axes, 0.4, stream)
    plan = kept(axes, scores)
    hard = {axis: torch.zeros(size).index_fill_(0, plan_units(plan, axis, size), 1) for axis, size in axes.axes.items()}
    hard = {axis: hard[axis] for axis in maskable(axes)}
    small = nestling.submodel(net, axes, plan).eval()
    masked = functional_call(net, masks.apply(net.state_dict(), hard), (inputs,))
    torch.testing.assert_close(masked, small(inputs), rtol=1e-9, atol=1e-9)
    assert masks.size(hard).item() == sum(tensor.numel() for tensor in small.parameters())


def plan_units(plan, axis, size):
    runs = plan.runs.get(axis, ((0, size),))
    return torch.tensor([unit for start, stop in runs for unit in range(start, stop)])


@pytest.mark.parametrize("name", NETS)
def test_masks_of_ones_change_nothing(name):
    net, inputs = net_of(name)
    axes = nestling.trace(net, inputs)
    masks = Masks(axes, frozenset(name for name, _ in net.named_parameters()))
    ones = {axis: torch.ones(size) for axis, size in maskable(axes).items()}
    for key, tensor in masks.apply(net.state_dict(), ones).items():
        assert torch.equal(tensor, net.state_dict()[key])


def test_attention_is_masked_where_it_is_written():
    net = build("vit-b16", patch=4, width=8, depth=2, heads=2, size=8, channels=1).double().eval()
    inputs = torch.randn(2, 1, 8, 8, dtype=torch.float64)
    axes = nestling.trace(net, inputs)
    masks = Masks(axes, frozenset(name for name, _ in net.named_parameters()))
    whole = net(inputs)
    for axis, size in maskable(axes).items():
        mask = torch.ones(size)
        mask[0] = 0
        changed = functional_call(net, masks.apply(net.state_dict(), {axis: mask}), (inputs,))
        assert not torch.allclose(changed, whole), f"{axis} is masked nowhere"
    plan = kept(axes, initial(axes, 0.5, torch.Generator().manual_seed(0)))
    hard = {a: torch.zeros(n).index_fill_(0, plan_units(plan, a, n), 1) for a, n in maskable(axes).items()}
    assert masks.size(hard).item() == nestling.cost(net, axes, plan, inputs).parameters


@pytest.mark.parametrize("gradient", ["straight-through", "plain"])
def test_masks_learn(gradient):
    scores = torch.tensor([-1.0, -1e-4, 2.0], requires_grad=True)
    mask = soft(scores, None, Distillation(gradient=gradient, noise=False))
    mask.sum().backward()
    if gradient == "plain":  # Eq. 6 with τ = 1e-3: a gradient only beside the threshold
        torch.testing.assert_close(mask, torch.sigmoid(scores / 1e-3))
        assert scores.grad[0] == 0
        assert scores.grad[1] > 200
        assert scores.grad[2] == 0
    else:
        assert mask.tolist() == [0, 0, 1]
        torch.testing.assert_close(scores.grad, torch.sigmoid(scores).detach() * torch.sigmoid(-scores).detach())


def test_a_unit_that_is_off_learns_what_it_would_be_worth():
    net, inputs = net_of("resnet8")
    axes = nestling.trace(net, inputs)
    masks = Masks(axes, frozenset(name for name, _ in net.named_parameters()))
    off = {axis: torch.zeros(size, requires_grad=True) for axis, size in maskable(axes).items()}
    on = {axis: torch.ones(size) for axis, size in maskable(axes).items()}
    for axis, mask in off.items():
        functional_call(net, masks.apply(net.state_dict(), {**on, axis: mask}), (inputs,)).sum().backward()
        assert mask.grad.abs().max() > 0, axis


@settings(deadline=None)
@given(st.floats(0.05, 0.95), st.integers(0, 10))
def test_masks_start_with_the_ratio(ratio, seed):
    net = nn.Sequential(nn.Linear(4, 4000), nn.ReLU(), nn.Linear(4000, 2))
    axes = nestling.trace(net, torch.zeros(1, 4))
    (drawn,) = initial(axes, ratio, torch.Generator().manual_seed(seed)).values()
    assert abs((drawn >= 0).double().mean().item() - ratio) < 4 * math.sqrt(ratio * (1 - ratio) / 4000) + 1e-9
    (literal,) = initial(axes, ratio, torch.Generator().manual_seed(seed), literal=True).values()
    assert (literal >= 0).double().mean() > 0.45


MLP = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 2))
AXES = nestling.trace(MLP, torch.zeros(1, 4))


@given(st.lists(st.floats(-3, 3), min_size=14, max_size=14), st.floats(0.05, 1), st.floats(0.05, 1))
def test_levels_nest_and_keep_at_least_one(values, one, other):
    first, second = AXES.axes
    scores = {first: torch.tensor(values[:8]), second: torch.tensor(values[8:])}
    small, large = (kept(AXES, scores, ratio) for ratio in sorted((one, other)))
    for axis, size in AXES.axes.items():
        inner, outer = (set(plan_units(plan, axis, size).tolist()) for plan in (small, large))
        assert inner
        assert inner <= outer
        alive = {unit for unit in range(size) if scores[axis][unit] >= 0}
        assert outer <= (alive or {int(scores[axis].argmax())})


@given(st.lists(st.floats(-8, 8), min_size=6, max_size=6))
def test_divergence(values):
    one, two = torch.tensor(values, dtype=torch.float64).view(2, 1, 3)
    p, q = one.softmax(-1), two.softmax(-1)
    middle = (p + q) / 2
    expected = ((p * (p / middle).log()).sum() + (q * (q / middle).log()).sum()) / 2
    torch.testing.assert_close(divergence(one, q), expected, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(divergence(one, q), divergence(two, p), rtol=1e-9, atol=1e-12)
    assert divergence(one, p).abs() < 1e-12
    assert divergence(one, q) <= math.log(2)


def test_divergence_of_certain_opposites_has_a_gradient_that_is_a_number():
    logits = torch.tensor([[200.0, -200.0]], requires_grad=True)
    divergence(logits, torch.tensor([[0.0, 1.0]])).backward()
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize("name", ["cnn", "resnet8", "vgg16", "mlp"])
def test_sizes_in_multiply_accumulates_are_those_of_the_cost(name):
    net, inputs = net_of(name)
    axes = nestling.trace(net, inputs)
    masks = Masks(axes, frozenset(name for name, _ in net.named_parameters()), positions(net, inputs[:1]))
    plan = kept(axes, initial(axes, 0.5, torch.Generator().manual_seed(0)))
    hard = {a: torch.zeros(n).index_fill_(0, plan_units(plan, a, n), 1) for a, n in maskable(axes).items()}
    assert masks.size({}).item() == nestling.cost(net, axes, Plan(), inputs[:1]).macs
    assert masks.size(hard).item() == nestling.cost(net, axes, plan, inputs[:1]).macs
