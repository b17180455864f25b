"""Cross-entropy over the classes that a client holds: the loss of all tasks with classes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nestling.errors import TrainingError
from nestling.kernels.cross_entropy import correct, mean_cross_entropy
from nestling.model_inputs import forward
from nestling.tasks.task import Batch, LossResult, OutputMask


class ClassLoss:
    """The mean cross-entropy; `accelerate` says whether our faster kernel may replace PyTorch's."""

    accelerate: bool
    classes: int

    @property
    def cross_entropy(self) -> bool:
        """Whether the loss is this one; a task that changes it is trained client by client."""
        return type(self).loss is ClassLoss.loss and type(self).loss_of is ClassLoss.loss_of

    def loss(self, model: Callable[..., Any], batch: Batch, mask: OutputMask | None = None) -> LossResult:
        """Return the loss of a model that maps inputs (N, …) to logits (N, …, classes)."""
        inputs, targets = batch
        output = forward(model, inputs)
        if not isinstance(output, Tensor):
            raise TrainingError(f"this method needs a model that returns logits alone, not a {type(output).__name__}")
        return self.loss_of(output, targets, mask)[0]

    def loss_of(self, output: Tensor, targets: Tensor, mask: OutputMask | None = None) -> tuple[LossResult, Tensor]:
        """Return the mean over all targets (N, …) of logits (N, …, classes), and the masked logits.

        Targets of −100 (padding) do not count. A client that received only the rows of its own classes has no logits
        of the others. They would be zero, as in `masked`: in the softmax, `mask.absent` zeros are equivalent to one
        logit of log(absent). The logits returned then have a single zero for all absent classes.
        """
        logits = scores = masked(output, None if mask is None else mask.held)
        if mask is not None and mask.absent:
            others = logits.new_full((*logits.shape[:-1], 1), math.log(mask.absent))
            scores = torch.cat([logits, others], -1)
            logits = torch.cat([logits, torch.zeros_like(others)], -1).detach()
        value = mean_cross_entropy(scores, targets, self.accelerate)
        return LossResult(value, count_targets(targets), correct(logits.detach(), targets).sum()), logits


def count_targets(targets: Tensor) -> int:
    """Return the number of targets that count: −100 marks those that do not.

    >>> count_targets(torch.tensor([3, -100, 0]))
    2
    """
    return int((targets >= 0).sum())


def masked(logits: Tensor, held: Tensor | None) -> Tensor:
    """Set the logits of classes that the client does not hold to zero (HeteroFL, §4; zero, not −∞).

    >>> masked(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([0, 2]))
    tensor([[1., 0., 3.]])
    """
    if held is None:
        return logits
    absent = torch.ones(logits.shape[-1], dtype=torch.bool, device=logits.device)
    absent[held] = False
    return logits.masked_fill(absent, 0)
