"""Fed-ET's consensus: sums kept teacher by teacher equal the formulas over all teachers at once."""

import math

import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from nestling.methods.parts.consensus import Votes, confidence, consensus_loss
from tests.methods.method_cases import LAWS

TEACHERS = st.tuples(st.integers(1, 7), st.integers(1, 4), st.integers(2, 5), st.integers(0, 10**6))


def drawn(case):
    """Logits of some teachers, (teachers, samples, classes), in double precision."""
    teachers, samples, classes, seed = case
    return 3 * torch.randn(teachers, samples, classes, generator=torch.Generator().manual_seed(seed)).double()


def voted(logits):
    votes = Votes.none(*logits.shape[1:])
    for one in logits:
        votes = votes.add(one)
    return votes


@LAWS
@given(TEACHERS)
def test_the_consensus_is_the_mean_weighted_by_variance(case):
    logits = drawn(case)
    weights = logits.var(-1, correction=0, keepdim=True)
    expected = (weights * logits).sum(0) / weights.sum(0)
    assert torch.allclose(voted(logits).consensus(), expected, atol=1e-12)


@LAWS
@given(TEACHERS)
def test_dissent_is_the_weighted_mean_of_those_that_predict_another_class(case):
    logits = drawn(case)
    votes = voted(logits)
    labels = votes.consensus().argmax(-1)
    dissent, differ = votes.dissent(labels)
    for sample, label in enumerate(labels.tolist()):
        others = [one[sample] for one in logits if one[sample].argmax() != label]
        assert bool(differ[sample]) == bool(others)
        weights = torch.stack([confidence(one) for one in others]) if others else torch.zeros(1)
        expected = sum(w * one for w, one in zip(weights, others, strict=False)) / weights.sum() if others else 0.0
        assert torch.allclose(dissent[sample], torch.as_tensor(expected, dtype=torch.float64), atol=1e-12)


@LAWS
@given(TEACHERS)
def test_memory_grows_with_the_classes_that_were_predicted_and_not_with_teachers(case):
    logits = drawn(case)
    votes = voted(torch.cat([logits, logits, logits]))
    predicted = logits.argmax(-1)
    assert len(votes.classes) == max(len(column.unique()) for column in predicted.T)


def test_golden_numbers():
    votes = voted(torch.tensor([[[4.0, 0.0]], [[0.0, 2.0]]], dtype=torch.float64))  # variances 4 and 1
    assert votes.consensus().tolist() == [[3.2, 0.4]]
    dissent, differ = votes.dissent(torch.tensor([0]))
    assert (dissent.tolist(), differ.tolist()) == ([[0.0, 2.0]], [True])
    student = torch.zeros(1, 2, dtype=torch.float64)
    p = 1 / (1 + math.exp(-2))
    divergence = math.log(2) + p * math.log(p) + (1 - p) * math.log(1 - p)
    loss = consensus_loss(student, torch.tensor([0]), dissent, differ, 0.05).item()
    assert math.isclose(loss, math.log(2) + 0.05 * divergence, rel_tol=1e-12)


def test_where_all_agree_the_loss_is_cross_entropy():
    logits = drawn((1, 4, 3, 0))
    votes, student = voted(logits), drawn((1, 4, 3, 1))[0]
    labels = votes.consensus().argmax(-1)
    dissent, differ = votes.dissent(labels)
    assert not differ.any()
    assert torch.equal(consensus_loss(student, labels, dissent, differ, 0.05), F.cross_entropy(student, labels))


def test_teachers_without_an_opinion_have_a_plain_mean():
    votes = voted(torch.tensor([[[1.0, 1.0]], [[3.0, 3.0]]]))
    assert torch.allclose(votes.consensus(), torch.tensor([[2.0, 2.0]], dtype=torch.float64))
