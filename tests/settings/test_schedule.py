"""Learning rates from round to round."""

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nestling.settings import LocalTraining, learning_rate

LAWS = settings(deadline=None, derandomize=True, max_examples=100, database=None)
LR = st.floats(1e-5, 10)
ROUNDS = st.integers(1, 60)


def rates(rounds, **options):
    return [learning_rate(LocalTraining(**options), round, rounds) for round in range(1, rounds + 1)]


@LAWS
@given(LR, ROUNDS)
def test_constant(lr, rounds):
    assert rates(rounds, lr=lr) == [lr] * rounds


@LAWS
@given(LR, ROUNDS, st.lists(st.integers(1, 60), max_size=4), st.sampled_from([0.1, 0.25, 1.0]))
def test_steps_are_taken_after_the_rounds_named(lr, rounds, milestones, factor):
    actual = rates(rounds, lr=lr, schedule="steps", milestones=tuple(milestones), lr_decay=factor)
    rate, expected = lr, []
    for round in range(1, rounds + 1):
        expected.append(rate)
        rate *= factor ** milestones.count(round)
    assert actual == pytest.approx(expected)


def test_the_papers_steps():
    actual = rates(400, lr=0.1, schedule="steps", milestones=(150, 250))
    assert actual == pytest.approx([0.1] * 150 + [0.01] * 100 + [0.001] * 150)


@LAWS
@given(LR, ROUNDS)
def test_cosine_starts_full_and_falls_to_just_above_zero(lr, rounds):
    actual = rates(rounds, lr=lr, schedule="cosine")
    assert actual[0] == lr
    assert all(a > b for a, b in pairwise(actual))
    assert actual[-1] > 0
    assert learning_rate(LocalTraining(lr=lr, schedule="cosine"), rounds + 1, rounds) == pytest.approx(
        0, abs=lr * 1e-12
    )
    # halfway it is half, and it falls as far before as after
    for k, rate in enumerate(actual[1:], start=1):
        assert rate + actual[rounds - k] == pytest.approx(lr)


@LAWS
@given(LR, ROUNDS, st.integers(1, 80), st.sampled_from(["constant", "steps", "cosine"]))
def test_warm_up_rises_evenly_and_the_schedule_goes_on_from_there(lr, rounds, warmup, schedule):
    actual = rates(rounds, lr=lr, schedule=schedule, warmup_rounds=warmup)
    rising = actual[:warmup]
    assert rising == pytest.approx([lr * round / warmup for round in range(1, len(rising) + 1)])
    assert 0 < rising[0] <= lr
    rest = actual[warmup:]
    if rest:
        assert rest[0] == lr
        assert all(a >= b for a, b in pairwise(rest))
        assert rest[-1] > 0
    assert all(math.isfinite(rate) for rate in actual)
