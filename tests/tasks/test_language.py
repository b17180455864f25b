"""Tasks on words: what is asked, what is counted, and the loss of a client that received its own words alone."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from nestling.tasks import Classification
from nestling.tasks.class_loss import masked
from nestling.tasks.language import IGNORED, LanguageTask
from nestling.tasks.task import OutputMask

LAWS = settings(deadline=None, derandomize=True, max_examples=40, database=None)
MASKED = LanguageTask("masked-word", mask=10, padding=11, unknown=0, end=2)
NEXT = LanguageTask("next-word", padding=10, unknown=0, end=2)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@LAWS
@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(2, 9), st.integers(0, 4))
def test_masked_words_are_hidden_and_all_words_asked_for(seed, rows, length, filled):
    sequences = torch.randint(10, (rows, length), generator=generator(seed), dtype=torch.int32)
    sequences[-1, max(1, length - filled) :] = 11
    inputs, targets = MASKED.batch(sequences, generator(seed))
    there = sequences != 11
    assert torch.equal(targets[there], sequences[there].long())
    assert bool((targets[~there] == IGNORED).all())
    hidden = inputs == 10
    assert bool(hidden.any())
    assert not bool((hidden & ~there).any()), "padding is not filled in"
    assert torch.equal(inputs[~hidden], sequences[~hidden].long())
    _, only = MASKED.batch(sequences, generator(seed), positions="masked")
    assert torch.equal(only != IGNORED, hidden)
    again = MASKED.batch(sequences, generator(seed))
    assert torch.equal(again[0], inputs)


def test_fifteen_per_cent_are_masked():
    inputs, _ = MASKED.batch(torch.zeros(400, 100), generator())
    assert (inputs == 10).double().mean().item() == pytest.approx(0.15, abs=0.01)


@LAWS
@given(st.integers(0, 10**6), st.integers(1, 6), st.sampled_from([MASKED, NEXT]))
def test_counts_of_parts_add_up_to_those_of_the_whole(seed, cut, task):
    random = generator(seed)
    sequences = torch.randint(10, (7, 6), generator=random)
    sequences[3, 3:] = task.padding
    inputs, targets = task.batch(sequences, random)
    logits = torch.randn(*targets.shape, 10, generator=random, dtype=torch.float64)
    whole = task.sums(logits, inputs, targets)
    pieces = [task.sums(*(x[part] for x in (logits, inputs, targets))) for part in (slice(cut), slice(cut, None))]
    total = task.join(pieces)
    for kind in whole:
        assert total[kind][::2] == whole[kind][::2]
        assert total[kind][1] == pytest.approx(whole[kind][1], rel=1e-12)
    # and by hand
    flat, flat_targets = logits.flatten(0, 1), targets.flatten()
    known = flat_targets != IGNORED
    loss = F.cross_entropy(flat[known], flat_targets[known]).item()
    figures = task.measure(whole)
    assert figures["loss"] == pytest.approx(loss, rel=1e-12)
    assert figures["perplexity"] == pytest.approx(math.exp(loss), rel=1e-12)


def test_accuracies_of_next_words_leave_out_what_they_say():
    logits = torch.full((1, 4, 10), -9.0)
    logits[0, range(4), [0, 5, 2, 7]] = 9.0  # says: unknown, 5, the end, 7
    targets = torch.tensor([[0, 5, 2, 6]])
    figures = NEXT.measure(NEXT.sums(logits, torch.zeros(1, 4), targets))
    assert (figures["accuracy"], figures["accuracy_no_oov"], figures["accuracy_no_oov_eos"]) == (3 / 4, 2 / 3, 1 / 2)


def test_perplexities_of_masked_words_are_labelled():
    logits = torch.zeros(1, 2, 10)
    logits[0, 0, 3] = 50.0
    inputs, targets = torch.tensor([[3, 10]]), torch.tensor([[3, 4]])
    figures = MASKED.measure(MASKED.sums(logits, inputs, targets))
    assert figures["perplexity_masked"] == pytest.approx(10)
    assert figures["perplexity"] == figures["perplexity_all"] == pytest.approx(math.sqrt(10))
    only = LanguageTask("masked-word", mask=10, padding=11, positions="masked")
    assert only.measure(only.sums(logits, inputs, targets))["perplexity"] == pytest.approx(10)


def test_figures_that_are_no_numbers_are_none():
    assert NEXT.measure({"all": (2, math.nan, 0), "no_oov": (0, 0.0, 0), "no_oov_eos": (0, 0.0, 0)}) == {
        "accuracy": 0.0,
        "accuracy_no_oov": None,
        "accuracy_no_oov_eos": None,
        "loss": None,
        "perplexity": None,
    }
    assert NEXT.measure({"all": (1, 1e9, 0), "no_oov": (1, 1.0, 1), "no_oov_eos": (1, 1.0, 1)})["perplexity"] is None


@LAWS
@given(st.integers(0, 10**6), st.sets(st.integers(0, 11), min_size=1, max_size=11), st.booleans())
def test_absent_rows_count_as_zeros_in_closed_form(seed, held, words):
    """Loss, gradients and answers of own rows alone are those of all rows with the others set to zero."""
    random = generator(seed)
    labels = torch.tensor(sorted(held))
    shape = (3, 4, 12) if words else (5, 12)
    logits = torch.randn(*shape, generator=random, dtype=torch.float64, requires_grad=True)
    places = torch.randint(len(labels), shape[:-1], generator=random)
    if words:
        places[0, 1] = IGNORED
    targets = torch.where(places < 0, places, labels[places.clamp(min=0)])
    task = NEXT if words else Classification(12)
    wanted, full = task.loss_of(masked(logits, labels), targets)
    (slope,) = torch.autograd.grad(wanted.value, logits)
    own = logits.detach()[..., labels].requires_grad_()
    loss, masked_logits = task.loss_of(own, places, OutputMask(absent=12 - len(labels)))
    (own_slope,) = torch.autograd.grad(loss.value, own)
    assert loss.value.item() == pytest.approx(wanted.value.item(), rel=1e-12)
    assert torch.equal(task.loss_of(logits, targets, OutputMask(labels))[0].value, wanted.value)
    assert torch.allclose(own_slope, slope[..., labels], rtol=1e-10, atol=1e-14)
    assert slope.abs().sum() == pytest.approx(own_slope.abs().sum().item())
    right = (full.argmax(-1) == targets).sum()
    assert (masked_logits.argmax(-1) == places).sum() == right
    assert loss.correct == wanted.correct == right
    assert loss.count == wanted.count == (targets >= 0).sum()


def test_padding_does_not_count():
    model = nn.Embedding(4, 4)
    ids = torch.tensor([[0, 1, 3]])
    loss = NEXT.loss(model, (ids, torch.tensor([[1, 2, IGNORED]])))
    assert loss.value.item() == pytest.approx(F.cross_entropy(model(ids)[0, :2], torch.tensor([1, 2])).item())
    assert loss.count == 2
