"""Losses: what a client minimises on a batch."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from nestling.errors import TrainingError
from nestling.local.entropies import MANY, entropies
from nestling.local.learner import Learner

# A loss takes (learner, inputs, targets) and returns the loss to minimise and the logits it came from.
Loss = Callable[[Learner, Tensor, Tensor], tuple[Tensor, Tensor]]


def cross_entropy(learner: Learner, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The mean cross-entropy of a batch: inputs (N, …), targets (N, …) → a scalar and logits (N, …, classes)."""
    output = learner.model(inputs)
    if not isinstance(output, Tensor):
        raise TrainingError(f"this method needs a model that returns logits alone, not a {type(output).__name__}")
    return entropy(learner, masked(output, learner.labels), targets)


def entropy(learner: Learner, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The mean over all targets, one for every row of logits; those that are −100 (padding) do not count.

    A client that received the rows of its own classes alone has no logits of the others. They would be zero, as in
    `masked`: in the softmax, `learner.absent` zeros count as much as one logit of log(absent). Returned are the logits
    with one zero for all of them, which is the answer where all of the client's own are below it.
    """
    if not learner.absent:
        return _mean(logits, targets, learner.fast), logits
    others = logits.new_full((*logits.shape[:-1], 1), math.log(learner.absent))
    loss = _mean(torch.cat([logits, others], -1), targets, learner.fast)
    return loss, torch.cat([logits, torch.zeros_like(others)], -1).detach()


def _mean(logits: Tensor, targets: Tensor, fast: bool) -> Tensor:
    rows, asked = logits.flatten(0, -2), targets.flatten()
    if logits.shape[-1] < MANY or not fast:
        return F.cross_entropy(rows, asked)
    return entropies(rows, asked).sum() / (asked >= 0).sum()


def masked(logits: Tensor, labels: Tensor | None) -> Tensor:
    """Set the logits of classes that the client does not hold to zero (HeteroFL, §3; zero, not −∞).

    >>> masked(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([0, 2]))
    tensor([[1., 0., 3.]])
    """
    if labels is None:
        return logits
    absent = torch.ones(logits.shape[-1], dtype=torch.bool, device=logits.device)
    absent[labels] = False
    return logits.masked_fill(absent, 0)


def right(logits: Tensor, targets: Tensor) -> Tensor:
    """Whether the highest logit, the first among equals, is that of the target: (N, …, classes), (N, …) → (N, …).

    >>> right(torch.tensor([[1.0, 3.0], [2.0, 2.0]]), torch.tensor([1, 1]))
    tensor([ True, False])
    """
    if logits.shape[-1] < MANY:
        return logits.argmax(-1) == targets
    # which of many is the highest takes far longer to find than how high it is
    asked = logits.gather(-1, targets.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    highest = (asked == logits.amax(-1)) & (targets >= 0)
    highest[highest.clone()] = logits[highest].argmax(-1) == targets[highest]
    return highest
