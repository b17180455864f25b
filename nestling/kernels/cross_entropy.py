"""Cross-entropy per row, faster than PyTorch's for many classes.

With thousands of words, the gradient of the logits is the largest tensor of a step. PyTorch fills a tensor with zeros,
writes one number into every row, and computes the gradient from it in another tensor; here it is written once.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

MANY = 256  # least number of classes for which the kernels here are used


def cross_entropy_rows(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy of every row: logits (N, classes), targets (N,) → (N,); zero where a target is −100.

    >>> cross_entropy_rows(torch.zeros(2, 4), torch.tensor([3, -100]))
    tensor([1.3863, 0.0000])
    """
    if logits.shape[-1] < MANY or not logits.is_cpu:
        return F.cross_entropy(logits, targets, reduction="none")
    losses: Tensor = _Entropies.apply(logits, targets)
    return losses


class _Entropies(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> Tensor:
        logs = torch.log_softmax(logits, -1)
        ctx.save_for_backward(logs, targets)
        return F.nll_loss(logs, targets, reduction="none")

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Return the gradient of every row: the softmax, minus one at the target."""
        logs, targets = ctx.saved_tensors
        counted = targets >= 0
        slope = logs.exp()
        slope[torch.arange(len(targets), device="cpu"), targets.clamp(min=0)] -= 1
        return slope.mul_((gradient * counted).unsqueeze(-1)), None


def mean_cross_entropy(logits: Tensor, targets: Tensor, fast: bool = True) -> Tensor:
    """Return the mean over all targets that are not −100: logits (N, …, classes), targets (N, …) → a scalar.

    Without `fast`, PyTorch's own function is used, however many classes there are.

    >>> mean_cross_entropy(torch.zeros(2, 4), torch.tensor([3, -100]))
    tensor(1.3863)
    """
    rows, classes = logits.flatten(0, -2), targets.flatten()
    if logits.shape[-1] < MANY or not fast:
        return F.cross_entropy(rows, classes)
    return cross_entropy_rows(rows, classes).sum() / (classes >= 0).sum()


def correct(logits: Tensor, targets: Tensor) -> Tensor:
    """Return whether the highest logit, the first of equal ones, is the target's: (N, …, classes), (N, …) → (N, …).

    >>> correct(torch.tensor([[1.0, 3.0], [2.0, 2.0]]), torch.tensor([1, 1]))
    tensor([ True, False])
    """
    if logits.shape[-1] < MANY:
        return logits.argmax(-1) == targets
    # argmax takes far longer than amax, so it is used only where the target has the highest logit
    of_target = logits.gather(-1, targets.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    highest = (of_target == logits.amax(-1)) & (targets >= 0)
    highest[highest.clone()] = logits[highest].argmax(-1) == targets[highest]
    return highest
