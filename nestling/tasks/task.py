"""`Task`: what a model learns and how it is measured, such as classification or the prediction of next words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from nestling.data.federated import ClientData

Answer = Any  # what a task keeps of a model's output: logits, or sums over positions
Batch = tuple[Tensor, Tensor]  # inputs (N, …) and targets (N, …)


@dataclass(frozen=True)
class Metric:
    """A figure of an evaluation, and which direction is better."""

    name: str
    better: Literal["higher", "lower"]
    percent: bool = False


@dataclass(frozen=True, eq=False)
class LossResult:
    """The loss of a batch.

    Attributes
    ----------
    value
        The loss to minimise, a scalar: the mean over `count` targets, plus terms that parts of a method add.
    count
        The number of targets: samples, or words of sequences.
    correct
        How many targets were predicted correctly, a scalar; None for tasks without classes.
    """

    value: Tensor
    count: int
    correct: Tensor | None = None


@dataclass(frozen=True, eq=False)
class OutputMask:
    """Which classes a client's loss is about (HeteroFL's masked loss).

    Attributes
    ----------
    held
        The classes that the client holds, (classes held,): logits of all others are set to zero. None for all.
    rows
        The rows of the model, by axis, that merge from this client; empty for all.
    absent
        The number of classes that the client's model has no row for, because it received its own classes only.
    """

    held: Tensor | None = None
    rows: Mapping[str, Tensor] = field(default_factory=dict)
    absent: int = 0


class Task(Protocol):
    """What a model learns from batches, and what is measured of its answers.

    Attributes
    ----------
    name
        The name of the task.
    metrics
        What is measured; the best round is chosen by the first.
    classes
        The number of classes, or of words, that targets are among; 0 for tasks without classes.
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
    def classes(self) -> int:
        """Return the number of classes that targets are among; 0 without classes."""

    @property
    def draws(self) -> bool:
        """Whether `prepare` draws random numbers."""

    @property
    def local_accuracy(self) -> bool:
        """Whether clients are also tested on their share of the test set, among the classes that they hold."""

    def prepare(self, samples: Any, random: torch.Generator, *, training: bool) -> tuple[Tensor, Tensor]:
        """Return inputs (N, …) and targets (N, …) of samples as the data holds them, on the CPU."""

    def loss(self, model: Callable[[Tensor], Any], batch: Batch, mask: OutputMask | None = None) -> LossResult:
        """Return the loss of a model on a batch."""

    def loss_of(self, output: Any, targets: Tensor, mask: OutputMask | None = None) -> tuple[LossResult, Tensor]:
        """Return the loss of a model's output on a batch, and the output after the mask."""

    def objection(self, model: Callable[[Tensor], Any], example: Tensor) -> str:
        """Return why a model cannot learn the task, such as that it "sees …"; empty where nothing is wrong."""

    def output_shape(self, inputs: Tensor) -> tuple[int, ...] | None:
        """Return the shape that a model's output on inputs must have; None where that is not known."""

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
