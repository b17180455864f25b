"""A dropped block is a block with step 0, in every residual net."""

import copy

import pytest
import torch
from torch import nn

from nestling.nets import Dropped, Residual, build, example

NETS = {
    "preresnet18": {"widths": (4, 6, 8, 8)},
    "preresnet18-paper": {"widths": (4, 6, 8, 8), "learn_steps": True},
    "resnet8": {"widths": (4, 6, 8, 8)},
    "resnet18": {"widths": (4, 6, 8, 8)},
    "resnet34": {"widths": (4, 6, 8, 8), "learn_steps": False},
    "resnet56": {"widths": (4, 6, 8)},
    "resnet110": {"widths": (4, 6, 8)},
    "wide-resnet101-2": {"widths": (2, 2, 4, 4), "stem_width": 4},
    "vit-tiny": {"width": 12},
    "vit-b16": {"width": 12, "size": 64},
    "transformer-mlm": {"width": 16, "hidden": 12, "vocabulary": 30},
    "transformer-nwp": {"width": 16, "hidden": 12, "vocabulary": 30},
}
BLOCKS = {
    "preresnet18": 8,
    "preresnet18-paper": 5,
    "resnet8": 4,
    "resnet18": 8,
    "resnet34": 16,
    "resnet56": 27,
    "resnet110": 54,
    "wide-resnet101-2": 33,
    "vit-tiny": 24,
    "vit-b16": 24,
    "transformer-mlm": 8,
    "transformer-nwp": 6,
}


def residuals(net):
    return {path: m for path, m in net.named_modules() if isinstance(m, Residual)}


def stop(block):
    """Set the step to 0, learned or not."""
    if isinstance(block.step, nn.Parameter):
        nn.init.zeros_(block.step)
    else:
        block.step = 0.0


def prepare(name):
    """A float64 model with weights and statistics away from their start, and an input for it."""
    torch.manual_seed(0)
    net = build(name, **NETS[name]).double()
    (x,) = example(name, **NETS[name])
    x = x[..., :64, :64].double() if x.is_floating_point() else x
    with torch.no_grad():
        for p in net.parameters():
            p.add_(0.1 * torch.randn_like(p))
        net.train()(x)
    return net.eval(), x


@pytest.mark.parametrize("name", NETS)
def test_every_block_dropped_is_step_zero(name):
    net, x = prepare(name)
    seen = {}
    for path, block in residuals(net).items():
        block.register_forward_pre_hook(lambda _, args, path=path: seen.update({path: args[0]}))
    with torch.no_grad():
        net(x)
        assert len(seen) == BLOCKS[name]
        for path, block in residuals(net).items():
            before = block(seen[path])
            stop(block)
            after = block(seen[path])
            assert not torch.equal(before, after), path
            assert torch.equal(block.dropped()(seen[path]), after), path


@pytest.mark.parametrize("name", NETS)
def test_net_with_dropped_blocks_is_the_net_with_step_zero(name):
    net, x = prepare(name)
    still, small = copy.deepcopy(net), copy.deepcopy(net)
    for i, path in enumerate(residuals(net)):
        if i % 3 == 0:  # first blocks of stages, with their shortcuts, among them
            stop(still.get_submodule(path))
            small.set_submodule(path, small.get_submodule(path).dropped(), strict=True)
    with torch.no_grad():
        assert torch.equal(small(x), still(x))
    kept, whole = small.state_dict(), net.state_dict()
    assert kept.keys() < whole.keys()
    assert all(torch.equal(value, whole[key]) for key, value in kept.items())


def test_dropped_shares_the_shortcut():
    block = Residual(nn.Linear(2, 3), nn.Linear(2, 3), nn.LayerNorm(3), learn_step=True)
    dropped = block.dropped()
    assert isinstance(dropped, Dropped)
    assert dropped.skip is block.skip
    assert dropped.after is block.after
    assert list(dropped.state_dict()) == ["skip.weight", "skip.bias", "after.weight", "after.bias"]


def test_step_multiplies_the_body_only():
    body, skip, after = nn.Linear(3, 3), nn.Linear(3, 3), nn.ReLU()
    x = torch.randn(5, 3)
    for learned in (False, True):
        block = Residual(body, skip, after, step=2.5, learn_step=learned)
        torch.testing.assert_close(block(x), after(skip(x) + 2.5 * body(x)))


def test_learned_step_is_a_scalar_parameter():
    block = Residual(nn.Identity(), learn_step=True, step=3)
    assert block.step.shape == ()
    assert block.step.item() == 3.0
    block(torch.ones(2)).sum().backward()
    assert block.step.grad == 2.0
    assert [key for key, _ in block.named_parameters()] == ["step"]


def test_plain_step_is_a_float_and_one_costs_nothing():
    block = Residual(nn.Identity(), step=1)
    assert type(block.step) is float
    assert not list(block.parameters())
    assert [n.op for n in torch.fx.symbolic_trace(block).graph.nodes].count("call_function") == 1  # the sum
