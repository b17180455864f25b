"""Classification: one class per sample."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from nestling.data.federated import ClientData
from nestling.model_inputs import Inputs, count
from nestling.tasks.class_loss import ClassLoss
from nestling.tasks.task import Metric, SampleTask


@dataclass(frozen=True)
class Classification(ClassLoss, SampleTask):
    """Cross-entropy, and the share of samples whose class has the highest logit.

    Attributes
    ----------
    classes
        The number of classes.
    accelerate
        Whether our faster kernel may compute the loss.
    """

    name: ClassVar[str] = "classification"
    metrics: ClassVar[tuple[Metric, ...]] = (Metric("accuracy", "higher", percent=True), Metric("loss", "lower"))
    local_accuracy: ClassVar[bool] = True
    classes: int
    accelerate: bool = True

    def output_shape(self, inputs: Inputs) -> tuple[int, ...]:
        """Return the shape of logits, (samples, classes)."""
        return (count(inputs), self.classes)

    def measure(self, answer: Tensor, data: ClientData) -> dict[str, float | None]:
        """Return accuracy and loss over all samples at once: sums of parts would have other last digits."""
        targets = data.targets()[: len(answer)]
        loss = F.cross_entropy(answer.double(), targets).item()
        return {
            "accuracy": (answer.argmax(-1) == targets).double().mean().item(),
            "loss": loss if math.isfinite(loss) else None,
        }
