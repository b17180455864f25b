"""`Task`: what is learnt and how it is measured. Everything that differs between images and words is asked of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from nestling.data.federated import ClientData

Answer = Any  # what a task keeps of a model's output: logits, or sums over positions


@dataclass(frozen=True)
class Metric:
    """A figure of an evaluation, and which direction is better."""

    name: str
    better: Literal["higher", "lower"]
    percent: bool = False


class Task(Protocol):
    """What a model learns from batches, and what is measured of its answers.

    Attributes
    ----------
    name
        The name of the task.
    metrics
        What is measured; the best round is chosen by the first.
    draws
        Whether `prepare` draws random numbers.
    local_accuracy
        Whether clients are also tested on their own share of the test set, among the classes that they hold.
    """

    @property
    def name(self) -> str:
        """Return the name of the task."""

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Return what is measured; the best round is chosen by the first."""

    @property
    def draws(self) -> bool:
        """Whether `prepare` draws random numbers."""

    @property
    def local_accuracy(self) -> bool:
        """Whether clients are also tested on their share of the test set, among the classes that they hold."""

    def prepare(self, samples: Any, random: torch.Generator, *, training: bool) -> tuple[Tensor, Tensor]:
        """Return inputs (N, …) and targets (N, …) of samples as the data holds them, on the CPU."""

    def answer(self, output: Tensor, inputs: Tensor, targets: Tensor) -> Answer:
        """Return what is kept of a model's output on a batch, in a worker."""

    def join(self, answers: Iterable[Answer]) -> Answer:
        """Return the answer on several batches from those on each, in order."""

    def measure(self, answer: Answer, data: ClientData) -> dict[str, float | None]:
        """Return the figures of an answer on all samples of a data set; a figure that is no number is None."""

    def test_chunk(self, samples: int) -> int:
        """Return the number of samples that one job tests, of so many in all."""

    def test_batch(self, inputs: Tensor, most: int) -> int:
        """Return the number of samples that go through a model at once in a test: at most `most`."""
