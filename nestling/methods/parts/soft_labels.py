"""Losses on predicted probabilities, and DS-FL's entropy reduction: pure functions of tensors, (samples, classes)."""

from __future__ import annotations

import torch
from torch import Tensor


def entropy_reduction(mean: Tensor, temperature: float) -> Tensor:
    """Return the softmax of mean probabilities over a temperature (Itahara et al., Section 3.3).

    Parameters
    ----------
    mean
        The clients' mean probabilities, (samples, classes).
    temperature
        Below about 1/4, the result is usually sharper than the mean; above, it tends to the same for all classes.

    Examples
    --------
    >>> entropy_reduction(torch.tensor([[0.5, 0.3, 0.2]]), 0.1).round(decimals=3)
    tensor([[0.8440, 0.1140, 0.0420]])
    """
    return torch.softmax(mean / temperature, -1)


def soft_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy of softmax(logits) against target probabilities, a scalar, in nats.

    >>> soft_cross_entropy(torch.zeros(3, 2), torch.tensor([[0.5, 0.5]]).expand(3, 2)).item()  # ln 2
    0.693...
    """
    return -(targets * logits.log_softmax(-1)).sum(-1).mean()


def divergence_from(targets: Tensor, logits: Tensor) -> Tensor:
    """Return the Kullback-Leibler divergence KL(targets ‖ softmax(logits)) of every sample, (samples,), in nats.

    >>> divergence_from(torch.tensor([[1.0, 0.0]]), torch.zeros(1, 2))  # ln 2
    tensor([0.6931])
    """
    return (torch.xlogy(targets, targets) - targets * logits.log_softmax(-1)).sum(-1)
