"""Gradient descent by the kernel itself: the steps of PyTorch's optimizer."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from nestling.kernels.fused_sgd import FusedSGD, can_step
from nestling.methods.sgd import Optimizer
from nestling.settings import LocalTraining

SHAPES = [(3, 4), (5,), (2, 3, 2, 2), ()]


def weights(seed, dtype=torch.float64):
    random = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=random, dtype=dtype)) for shape in SHAPES]


def pull(parameters, step, used):
    """A loss whose gradients differ from step to step; those of parameters that are not used are None."""
    return sum((k + 1 + step) * (one - step).square().sum() for k, one in enumerate(parameters) if k in used)


@settings(deadline=None, max_examples=40)
@given(
    momentum=st.sampled_from([0.0, 0.5, 0.9]),
    decay=st.sampled_from([0.0, 5e-4, 0.1]),
    clip=st.sampled_from([0.0, 1e-3, 1.0, 1e6]),
    use=st.lists(st.sets(st.integers(0, len(SHAPES) - 1)), min_size=1, max_size=5),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_its_steps_are_those_of_pytorch(momentum, decay, clip, use, dtype):
    training = LocalTraining(momentum=momentum, weight_decay=decay, clip_norm=clip)
    ours, theirs = weights(1, dtype), weights(1, dtype)
    stepping = Optimizer(ours, training, 0.05)
    assert can_step(ours)
    optimizer = torch.optim.SGD(theirs, lr=0.05, momentum=momentum, weight_decay=decay, fused=False)
    for step, used in enumerate(use):
        if not used:
            continue
        stepping.step(pull(ours, step, used))
        optimizer.zero_grad()
        pull(theirs, step, used).backward()
        if clip:
            nn.utils.clip_grad_norm_(theirs, clip)
        optimizer.step()
        assert all(one.grad is None for one in ours)
    close = 1e-12 if dtype == torch.float64 else 1e-4
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=close, atol=close)


def test_without_gradients_nothing_moves():
    ours = weights(2)
    before = [one.detach().clone() for one in ours]
    FusedSGD(ours, 0.1, momentum=0.9).step(1.0)
    assert all(torch.equal(one, old) for one, old in zip(ours, before, strict=True))


@pytest.mark.parametrize("parameters", [[*weights(0, torch.float32), *weights(0)], weights(0, torch.bfloat16)])
def test_the_kernel_does_not_take_other_types(parameters):
    assert not can_step(parameters)


def test_gradients_of_an_earlier_round_are_forgotten():
    ours = weights(3)
    pull(ours, 1, {0, 1}).backward()
    Optimizer(ours, LocalTraining(), 0.1)
    assert all(one.grad is None for one in ours)


def test_narrowed_it_goes_on_with_the_first_clients():
    """Momenta of clients that are done are left behind."""
    stacked = nn.Parameter(torch.ones(3, 2))
    whole = stacked.data
    optimizer = Optimizer([stacked], LocalTraining(momentum=0.5, weight_decay=0.0, clip_norm=0.0), 1.0)
    optimizer.step(stacked.sum())
    stacked.data = whole[:2]
    optimizer.narrow(2)
    optimizer.step(stacked.sum())
    assert whole.tolist() == [[-1.5, -1.5], [-1.5, -1.5], [0.0, 0.0]]


@pytest.mark.parametrize("used", [{0, 1, 2, 3}, {1, 3}])
def test_momenta_lie_in_the_memory_of_the_last_client_and_remember_nothing_of_it(used):
    training, room, states, places = LocalTraining(momentum=0.9), [], [], []
    for shared in (None, room, room):
        ours = weights(4)
        optimizer = Optimizer(ours, training, 0.1, buffers=shared)
        for step in (0, 1):
            optimizer.step(pull(ours, step, used))
        states.append([one.detach().clone() for one in ours])
        places.append([one.data_ptr() for one in room])
    assert len(room) == len(SHAPES)
    assert places[1] == places[2]
    for other in states[1:]:
        assert all(torch.equal(one, two) for one, two in zip(states[0], other, strict=True))


def test_room_of_another_shape_or_order_in_memory_is_not_used():
    training, room = LocalTraining(momentum=0.9), [torch.ones(2, 3), torch.ones(5)]
    ours = [nn.Parameter(torch.ones(3, 2).t()), nn.Parameter(torch.ones(5))]
    Optimizer(ours, training, 0.1, buffers=room).step(ours[0].sum() + ours[1].sum())
    assert [one.stride() for one in room] == [one.stride() for one in ours]


LAYOUTS = {
    "turned": lambda: torch.arange(24.0, dtype=torch.float64).view(2, 3, 4).transpose(1, 2),
    "channels last": lambda: torch.arange(48.0, dtype=torch.float64).view(2, 2, 3, 4).permute(0, 3, 1, 2),
    "one channel": lambda: torch.arange(12.0, dtype=torch.float64).view(4, 3).t()[:, None],
    "gaps": lambda: torch.arange(24.0, dtype=torch.float64).view(4, 6)[:, :3],
    "every other row": lambda: torch.arange(24.0, dtype=torch.float64).view(6, 4)[::2],
}


@pytest.mark.parametrize("clip", [0.0, 1.0])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_weights_may_lie_in_memory_in_any_order(layout, optimizer, clip):
    """The kernel goes through memory as if all tensors lay alike: where they do not, it would mix them up."""
    training = LocalTraining(optimizer=optimizer, momentum=0.9, clip_norm=clip)
    ours, theirs = nn.Parameter(LAYOUTS[layout]()), nn.Parameter(LAYOUTS[layout]().contiguous())
    slopes = torch.randn(ours.shape, dtype=torch.float64)
    two = [Optimizer([one], training, 0.1) for one in (ours, theirs)]
    for _ in range(3):
        for one, stepping in zip((ours, theirs), two, strict=True):
            stepping.step((one * slopes).sum())
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("layout", ["turned", "channels last", "one channel"])
def test_gradients_may_lie_otherwise_than_weights(layout):
    ours, theirs = nn.Parameter(LAYOUTS[layout]()), nn.Parameter(LAYOUTS[layout]().contiguous())
    for one in (ours, theirs):
        one.grad = torch.arange(one.numel(), dtype=torch.float64).view(one.shape)
        FusedSGD([one], 0.1, momentum=0.9).step()
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
