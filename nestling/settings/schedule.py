"""The learning rate of a round."""

from __future__ import annotations

import math

from nestling.settings.structs import LocalTraining


def learning_rate(how: LocalTraining, round: int, rounds: int) -> float:
    """Return the learning rate of a round, counted from 1, in a run of `rounds` rounds.

    >>> how = LocalTraining(lr=0.1, schedule="steps", milestones=(150, 250))
    >>> [round(learning_rate(how, r, 400), 6) for r in (1, 150, 151, 251)]
    [0.1, 0.1, 0.01, 0.001]
    """
    if round <= how.warmup:
        return how.lr * round / how.warmup
    if how.schedule == "steps":
        return how.lr * how.factor ** sum(round > milestone for milestone in how.milestones)
    if how.schedule == "cosine":
        done = (round - how.warmup - 1) / max(1, rounds - how.warmup)
        return how.lr * 0.5 * (1 + math.cos(math.pi * done))
    return how.lr
