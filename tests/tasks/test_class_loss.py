"""The masked loss: zero logits of absent classes, and what follows for the last layer."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from nestling.errors import TrainingError
from nestling.kernels.cross_entropy import correct
from nestling.tasks.class_loss import masked
from tests.client.training_cases import inputs_of, net_of
from tests.harness import client_of, loss_of, slice_of


def with_logits(client, inputs, targets):
    """A client's loss, and the logits that its task computes it from."""
    again, logits = client.setup.task.loss_of(client.model(inputs), targets, client.mask)
    loss = loss_of(client, inputs, targets)
    assert torch.equal(loss.value, again.value)
    return loss, logits


@settings(deadline=None, derandomize=True, max_examples=15, database=None)
@given(st.sets(st.integers(0, 9), min_size=1, max_size=10), st.sampled_from([1.0, 0.5]), st.integers(0, 9))
def test_absent_classes_have_zero_logits_and_no_gradient(held, ratio, seed):
    net, axes = net_of("cnn")
    labels = torch.tensor(sorted(held))
    client = slice_of(net, axes, ratio, held=labels)
    inputs = inputs_of("cnn", 6, seed)
    targets = labels[torch.arange(6) % len(labels)]
    loss, logits = with_logits(client, inputs, targets)
    plain = client.model(inputs)
    for k in range(10):
        assert torch.equal(logits[:, k], plain[:, k] if k in held else torch.zeros(6, dtype=torch.float64))
    # zero, not −∞: an absent class still takes its share exp(0) of the probability
    among = plain[:, labels].exp().sum(1) + (10 - len(held))
    expected = (among.log() - plain[torch.arange(6), targets]).mean()
    torch.testing.assert_close(loss.value, expected)
    assert (loss.count, loss.correct.item()) == (6, (logits.argmax(1) == targets).sum().item())
    loss.value.backward()
    absent = torch.tensor([k for k in range(10) if k not in held], dtype=torch.long)
    head = client.model.head
    assert not head.weight.grad[absent].any()
    assert not head.bias.grad[absent].any()
    assert head.weight.grad[labels].any(1).all()


def test_without_labels_nothing_is_masked():
    net, axes = net_of("cnn")
    client = slice_of(net, axes, 0.5)
    inputs, targets = inputs_of("cnn"), torch.arange(5)
    loss, logits = with_logits(client, inputs, targets)
    assert torch.equal(logits, client.model(inputs))
    assert torch.equal(loss.value, F.cross_entropy(logits, targets))
    assert masked(logits, None) is logits


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_the_mask_keeps_the_dtype(dtype):
    assert masked(torch.ones(2, 3, dtype=dtype), torch.tensor([1])).dtype == dtype


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_absent_classes_are_zero_whatever_the_model_says_of_them(value):
    logits = torch.tensor([[1.0, value, 3.0]])
    assert torch.equal(masked(logits, torch.tensor([0, 2])), torch.tensor([[1.0, 0.0, 3.0]]))


def test_a_model_that_returns_more_than_logits_is_refused_in_one_sentence():
    class Two(torch.nn.Module):
        def forward(self, x):
            return x, x

    with pytest.raises(TrainingError, match="needs a model that returns logits alone, not a tuple"):
        loss_of(client_of(Two()), torch.zeros(2, 3), torch.zeros(2, dtype=torch.long))


@settings(deadline=None, derandomize=True, max_examples=40, database=None)
@given(
    classes=st.sampled_from([2, 255, 256, 300]),
    levels=st.sampled_from([1, 2, 50]),  # how many different logits there are: few make ties
    seed=st.integers(0, 99),
)
def test_an_answer_is_right_where_the_first_of_the_highest_logits_is_the_targets(classes, levels, seed):
    random = torch.Generator().manual_seed(seed)
    logits = torch.randint(levels, (3, 4, classes), generator=random).float()
    targets = torch.where(
        torch.rand(3, 4, generator=random) < 0.5,
        logits.argmax(-1),
        torch.randint(-1, classes, (3, 4), generator=random),
    )
    targets[targets < 0] = -100
    before = targets.clone()
    assert torch.equal(correct(logits, targets), logits.argmax(-1) == targets)
    assert torch.equal(targets, before)
