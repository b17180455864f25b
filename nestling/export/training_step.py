"""A model with its loss in one module: what programs that train on devices are exported from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from nestling.errors import ExportError
from nestling.model_inputs import logits_of

Loss = Callable[[Tensor, Tensor], Tensor]


class TrainingStep(nn.Module):
    """The loss of a model on a batch of inputs and targets.

    Parameters
    ----------
    model
        A model of one input tensor, in training mode; its batch norms must keep no running statistics.
    loss
        The mean loss of logits and targets.

    Examples
    --------
    >>> step = TrainingStep(nn.Linear(4, 3), nn.functional.cross_entropy)
    >>> step(torch.randn(8, 4), torch.arange(8) % 3).shape
    torch.Size([])
    """

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        super().__init__()
        dropout = next((name for name, part in model.named_modules() if isinstance(part, _DropoutNd) and part.p), None)
        if dropout is not None:
            raise ExportError(
                f"a training program cannot draw the random numbers of the dropout layer {dropout!r}: train the model "
                "with dropout 0, or export it for inference"
            )
        self.model, self.loss = model, loss

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss of a batch."""
        return self.loss(logits_of(self.model(inputs)), targets)


def loss_and_gradients(step: nn.Module, inputs: tuple[Any, ...]) -> list[Tensor]:
    """Return the loss of a batch and its gradients, in the order of the trained parameters.

    >>> step = TrainingStep(nn.Linear(4, 3), nn.functional.cross_entropy)
    >>> [tuple(value.shape) for value in loss_and_gradients(step, (torch.randn(8, 4), torch.arange(8) % 3))]
    [(), (3, 4), (3,)]
    """
    with torch.enable_grad():
        loss = step(*inputs)
        gradients = torch.autograd.grad(loss, [one for one in step.parameters() if one.requires_grad])
    return [loss.detach(), *gradients]
