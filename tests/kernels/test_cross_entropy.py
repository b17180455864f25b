"""Cross-entropy with a gradient of its own: PyTorch's, in double precision."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from nestling.kernels.cross_entropy import MANY, cross_entropy_rows


def rows(classes, count, seed, dtype=torch.float64):
    random = torch.Generator().manual_seed(seed)
    logits = 5 * torch.randn(count, classes, generator=random, dtype=dtype)
    targets = torch.randint(-1, classes, (count,), generator=random)
    return logits, torch.where(targets < 0, -100, targets)


@settings(deadline=None, derandomize=True, max_examples=30, database=None)
@given(st.sampled_from([2, MANY - 1, MANY, 400]), st.integers(1, 12), st.integers(0, 99))
def test_losses_and_gradients_are_those_of_pytorch(classes, count, seed):
    logits, targets = rows(classes, count, seed)
    weights = torch.randn(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    results = []
    for loss in (cross_entropy_rows, lambda one, targets_of: F.cross_entropy(one, targets_of, reduction="none")):
        leaf = logits.clone().requires_grad_()
        losses = loss(leaf, targets)
        (losses * weights).sum().backward()
        results.append((losses.detach(), leaf.grad))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


def test_a_graph_that_is_kept_gives_the_same_gradient_again():
    logits, targets = rows(300, 4, 0)
    leaf = logits.requires_grad_()
    loss = cross_entropy_rows(leaf, targets).sum()
    (once,) = torch.autograd.grad(loss, leaf, retain_graph=True)
    (again,) = torch.autograd.grad(loss, leaf)
    assert torch.equal(once, again)


@pytest.mark.parametrize("classes", [10, 300])
def test_where_nothing_is_asked_nothing_is_lost(classes):
    leaf = torch.randn(3, classes, requires_grad=True)
    losses = cross_entropy_rows(leaf, torch.full((3,), -100))
    losses.sum().backward()
    assert not losses.any()
    assert not leaf.grad.any()
