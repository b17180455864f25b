"""Classification: one class per sample."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from nestling.data.federated import ClientData
from nestling.tasks.class_loss import ClassLoss
from nestling.tasks.task import Metric

_CHUNK = 1000  # samples that one job tests, at most; fewer where there are few, so that several workers have work
_JOBS = 8  # that there are at least, if that leaves each a tenth of a chunk


@dataclass(frozen=True)
class Classification(ClassLoss):
    """Cross-entropy, and the share of samples whose class has the highest logit.

    Attributes
    ----------
    classes
        The number of classes.
    accelerate
        Whether our faster kernel may compute the loss.

    Examples
    --------
    >>> Classification(3).join([torch.zeros(1, 3), torch.ones(1, 3)]).shape
    torch.Size([2, 3])
    """

    name: ClassVar[str] = "classification"
    metrics: ClassVar[tuple[Metric, ...]] = (Metric("accuracy", "higher", percent=True), Metric("loss", "lower"))
    draws: ClassVar[bool] = False
    local_accuracy: ClassVar[bool] = True
    classes: int
    accelerate: bool = True

    def prepare(
        self, samples: tuple[Tensor, Tensor], random: torch.Generator, *, training: bool
    ) -> tuple[Tensor, Tensor]:
        """Return inputs and targets as they are."""
        del random, training
        return samples

    def objection(self, model: Callable[[Tensor], Any], example: Tensor) -> str:
        """Return nothing: any model may learn it."""
        del model, example
        return ""

    def output_shape(self, inputs: Tensor) -> tuple[int, ...]:
        """Return the shape of logits, (samples, classes)."""
        return (len(inputs), self.classes)

    def answer(self, output: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the logits, (N, classes): targets stay at the server."""
        del inputs, targets
        return output

    def join(self, answers: Iterable[Tensor]) -> Tensor:
        """Return the logits of all samples, on the CPU."""
        return torch.cat(list(answers)).cpu()

    def measure(self, answer: Tensor, data: ClientData) -> dict[str, float | None]:
        """Return accuracy and loss over all samples at once: sums of parts would have other last digits."""
        targets = data.targets()[: len(answer)]
        loss = F.cross_entropy(answer.double(), targets).item()
        return {
            "accuracy": (answer.argmax(-1) == targets).double().mean().item(),
            "loss": loss if math.isfinite(loss) else None,
        }

    def test_chunk(self, samples: int) -> int:
        """Return the number of samples that one job tests.

        >>> Classification(10).test_chunk(10_000), Classification(10).test_chunk(400)
        (1000, 100)
        """
        return min(_CHUNK, max(_CHUNK // 10, math.ceil(samples / _JOBS)))

    def test_batch(self, inputs: Tensor, most: int) -> int:
        """Return `most`, whatever the inputs."""
        del inputs
        return most
