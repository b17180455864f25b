"""Segmentation: a class for every pixel."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from nestling.data.federated import ClientData
from nestling.errors import ConfigError
from nestling.model_inputs import Inputs, forward
from nestling.tasks.class_loss import ClassLoss
from nestling.tasks.task import Batch, LossResult, Metric, OutputMask, SampleTask

IGNORED = -100  # the class of pixels that do not count, as in PyTorch


@dataclass(frozen=True)
class Segmentation(ClassLoss, SampleTask):
    """The mean cross-entropy over pixels; targets are (N, H, W), and a model returns logits (N, classes, H, W).

    The metrics are the share of pixels that get the right class, and the mean over classes of intersection over union
    (of classes that neither occur nor are predicted, there is none). A worker keeps counts of pixels only.

    Attributes
    ----------
    classes
        The number of classes.
    accelerate
        Whether our faster kernel may compute the loss.

    Examples
    --------
    >>> task, targets = Segmentation(classes=2), torch.tensor([[[0, 1], [1, -100]]])
    >>> logits = torch.stack([targets == 0, torch.full((1, 2, 2), 0.5)], dim=1)  # all right
    >>> counts = task.answer(logits, None, targets)
    >>> {name: round(value, 2) for name, value in task.measure(counts, None).items()}
    {'pixel_accuracy': 1.0, 'mean_iou': 1.0, 'loss': 0.47}
    """

    name: ClassVar[str] = "segmentation"
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("mean_iou", "higher", percent=True),
        Metric("pixel_accuracy", "higher", percent=True),
        Metric("loss", "lower"),
    )
    local_accuracy: ClassVar[bool] = False
    class_dim: ClassVar[int] = 1
    classes: int
    accelerate: bool = True

    def loss(self, model: Callable[..., Any], batch: Batch, mask: OutputMask | None = None) -> LossResult:
        """Return the loss of a model on a batch."""
        inputs, targets = batch
        return self.loss_of(forward(model, inputs), targets, mask)[0]

    def loss_of(self, output: Any, targets: Tensor, mask: OutputMask | None = None) -> tuple[LossResult, Tensor]:
        """Return the mean over all pixels, and the masked logits, (N, H, W, classes)."""
        self._check(output, targets)
        return super().loss_of(output.movedim(1, -1), targets, mask)

    def output_shape(self, inputs: Inputs) -> None:
        """Return None: height and width are those of the targets, which depend on the data."""
        del inputs

    def answer(self, output: Any, inputs: Inputs, targets: Tensor) -> Tensor:
        """Return counts in double precision: one row per class (right, predicted, true pixels), one of loss and pixels.

        The shape is (classes + 1, 3).
        """
        del inputs
        self._check(output, targets)
        counted = targets != IGNORED
        predicted, true = output.argmax(1)[counted], targets[counted]
        losses = F.cross_entropy(output.float(), targets, ignore_index=IGNORED, reduction="none")

        def pixels(classes: Tensor) -> Tensor:
            return torch.bincount(classes, minlength=output.shape[1])[: self.classes].double()

        rows = torch.stack([pixels(predicted[predicted == true]), pixels(predicted), pixels(true)], dim=1)
        return torch.cat([rows, torch.tensor([[losses.double().sum().item(), float(counted.sum()), 0.0]])])

    def join(self, answers: Iterable[Tensor]) -> Tensor:
        """Add counts up, in the order given."""
        total = torch.zeros(self.classes + 1, 3, dtype=torch.float64)
        for answer in answers:
            total = total + answer.cpu()
        return total

    def measure(self, answer: Tensor, data: ClientData | None) -> dict[str, float | None]:
        """Return the metrics of counts; None for those that are not finite."""
        del data
        right, predicted, true = answer[:-1].unbind(1)
        union = predicted + true - right
        overlaps = (right / union)[union > 0]
        loss, pixels, _ = answer[-1].tolist()
        metrics = {
            "pixel_accuracy": right.sum().item() / pixels if pixels else math.nan,
            "mean_iou": overlaps.mean().item() if len(overlaps) else math.nan,
            "loss": loss / pixels if pixels else math.nan,
        }
        return {name: value if math.isfinite(value) else None for name, value in metrics.items()}

    def _check(self, output: Any, targets: Tensor) -> None:
        """Raise unless there are logits for every class and pixel."""
        shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        fits = isinstance(output, Tensor) and output.dim() == targets.dim() + 1
        if not fits or (output.shape[0], *output.shape[2:]) != tuple(targets.shape) or output.shape[1] < self.classes:
            wanted = (len(targets), self.classes, *targets.shape[1:])
            raise ConfigError(
                f"segmentation needs logits of shape {wanted}, one for every class and pixel, not {shape}"
            )
