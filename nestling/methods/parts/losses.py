"""Losses: what a client minimises on a batch."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from nestling.errors import TrainingError
from nestling.kernels.cross_entropy import mean_cross_entropy
from nestling.methods.context import ClientContext

# A loss takes (context, inputs, targets) and returns the loss to minimise and the logits it came from.
Loss = Callable[[ClientContext, Tensor, Tensor], tuple[Tensor, Tensor]]


def cross_entropy(context: ClientContext, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The mean cross-entropy of a batch: inputs (N, …), targets (N, …) → a scalar and logits (N, …, classes)."""
    output = context.model(inputs)
    if not isinstance(output, Tensor):
        raise TrainingError(f"this method needs a model that returns logits alone, not a {type(output).__name__}")
    return entropy(context, masked(output, context.labels), targets)


def entropy(context: ClientContext, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The mean over all targets, one for every row of logits; those that are −100 (padding) do not count.

    A client that received the rows of its own classes alone has no logits of the others. They would be zero, as in
    `masked`: in the softmax, `context.absent` zeros count as much as one logit of log(absent). Returned are the logits
    with one zero for all of them, which is the answer where all of the client's own are below it.
    """
    if not context.absent:
        return mean_cross_entropy(logits, targets, context.fast), logits
    others = logits.new_full((*logits.shape[:-1], 1), math.log(context.absent))
    loss = mean_cross_entropy(torch.cat([logits, others], -1), targets, context.fast)
    return loss, torch.cat([logits, torch.zeros_like(others)], -1).detach()


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
