"""Entropy reduction and losses on probabilities, against formulas written out in double precision."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nestling.methods.parts.soft_labels import divergence_from, entropy_reduction, soft_cross_entropy
from tests.methods.method_cases import LAWS

LOGITS = st.lists(st.lists(st.floats(-8, 8), min_size=4, max_size=4), min_size=1, max_size=5).map(
    lambda rows: torch.tensor(rows, dtype=torch.float64)
)


def entropy(p):
    return -torch.xlogy(p, p).sum(-1)


@LAWS
@given(LOGITS)
def test_entropy_reduction_keeps_the_order_of_classes_and_is_a_distribution(logits):
    mean = logits.softmax(-1)
    sharp = entropy_reduction(mean, 0.1)
    assert torch.allclose(sharp.sum(-1), torch.ones(len(mean), dtype=torch.float64))
    assert torch.equal(mean.gather(-1, sharp.argmax(-1, keepdim=True)), mean.max(-1, keepdim=True).values)


@LAWS
@given(LOGITS, st.floats(0.02, 0.2))
def test_a_lower_temperature_has_a_lower_entropy(logits, temperature):
    mean = logits.softmax(-1)
    lower, higher = (entropy(entropy_reduction(mean, factor * temperature)) for factor in (1, 2))
    assert (lower <= higher + 1e-12).all()


def test_entropy_reduction_of_known_probabilities():
    mean = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64)
    total = 1 + math.exp(-2) + math.exp(-3)
    expected = torch.tensor([[1 / total, math.exp(-2) / total, math.exp(-3) / total]], dtype=torch.float64)
    assert torch.allclose(entropy_reduction(mean, 0.1), expected, atol=1e-15)
    uniform = torch.full((1, 4), 0.25, dtype=torch.float64)
    assert torch.equal(entropy_reduction(uniform, 0.1), uniform)


@LAWS
@given(LOGITS)
def test_cross_entropy_is_entropy_plus_divergence(logits):
    targets = logits.flip(-1).softmax(-1)
    expected = (entropy(targets) + divergence_from(targets, logits)).mean()
    assert soft_cross_entropy(logits, targets).item() == pytest.approx(expected.item(), abs=1e-12)
    assert (divergence_from(targets, logits) >= -1e-12).all()
    assert divergence_from(targets, targets.log()).abs().max() < 1e-12


def test_a_target_of_zero_counts_nothing():
    targets, logits = torch.tensor([[0.0, 1.0]]), torch.tensor([[0.0, 0.0]], requires_grad=True)
    divergence_from(targets, logits).sum().backward()
    assert torch.equal(logits.grad, torch.tensor([[0.5, -0.5]]))
