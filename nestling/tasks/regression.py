"""Regression: numbers instead of classes. The whole task is this file."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor

from nestling.data.federated import ClientData
from nestling.errors import TrainingError
from nestling.model_inputs import Inputs, forward
from nestling.tasks.task import Batch, LossResult, Metric, OutputMask, SampleTask


@dataclass(frozen=True)
class Regression(SampleTask):
    """The mean squared error of outputs (N, …) against targets of the same shape.

    Examples
    --------
    >>> import torch
    >>> loss, _ = Regression().loss_of(torch.tensor([[1.0], [2.0]]), torch.tensor([[1.0], [4.0]]))
    >>> loss.value, loss.correct
    (tensor(2.), None)
    """

    name: ClassVar[str] = "regression"
    metrics: ClassVar[tuple[Metric, ...]] = (Metric("rmse", "lower"), Metric("mae", "lower"), Metric("loss", "lower"))
    classes: ClassVar[int] = 0
    local_accuracy: ClassVar[bool] = False

    def loss(self, model: Callable[..., Any], batch: Batch, mask: OutputMask | None = None) -> LossResult:
        """Return the loss of a model on a batch."""
        inputs, targets = batch
        return self.loss_of(forward(model, inputs), targets, mask)[0]

    def loss_of(self, output: Any, targets: Tensor, mask: OutputMask | None = None) -> tuple[LossResult, Tensor]:
        """Return the mean squared error, and the output."""
        del mask
        if not isinstance(output, Tensor) or output.shape != targets.shape:
            shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
            raise TrainingError(
                f"regression needs outputs of the targets' shape {tuple(targets.shape)}, not {shape}: reshape one of "
                "them or, if the targets are classes, convert them with .long()"
            )
        return LossResult(F.mse_loss(output, targets), len(targets)), output

    def output_shape(self, inputs: Inputs) -> None:
        """Return None: it is that of the targets, which depends on the data."""
        del inputs

    def measure(self, answer: Tensor, data: ClientData) -> dict[str, float | None]:
        """Return the root of the mean squared error, the mean absolute error, and the loss."""
        error = answer.double() - data.targets()[: len(answer)].double()
        loss, mae = error.square().mean().item(), error.abs().mean().item()
        metrics = {"rmse": math.sqrt(loss), "mae": mae, "loss": loss}
        return {name: value if math.isfinite(value) else None for name, value in metrics.items()}
