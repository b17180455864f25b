"""The learning rate of a round."""

from __future__ import annotations

import math

from nestling.settings.structs import LocalTraining


def learning_rate(training: LocalTraining, round: int, rounds: int) -> float:
    """Return the learning rate of a round, counted from 1, in a run of `rounds` rounds.

    >>> training = LocalTraining(lr=0.1, schedule="steps", milestones=(150, 250))
    >>> [round(learning_rate(training, r, 400), 6) for r in (1, 150, 151, 251)]
    [0.1, 0.1, 0.01, 0.001]
    """
    if round <= training.warmup_rounds:
        return training.lr * round / training.warmup_rounds
    if training.schedule == "steps":
        return training.lr * training.lr_decay ** sum(round > milestone for milestone in training.milestones)
    if training.schedule == "cosine":
        done = (round - training.warmup_rounds - 1) / max(1, rounds - training.warmup_rounds)
        return training.lr * 0.5 * (1 + math.cos(math.pi * done))
    return training.lr
