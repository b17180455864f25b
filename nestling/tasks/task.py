"""`Task`: what a model learns and how it is measured, such as classification or the prediction of next words."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor, nn

from nestling.data.federated import ClientData
from nestling.model_inputs import Inputs, forward

Answer = Any  # what a task keeps of a model's output: logits, or sums over positions
Batch = tuple[Inputs, Tensor]  # inputs (N, …), one tensor or several, and targets (N, …)

_MAX_CHUNK = 1000  # most samples that one job tests
_MIN_JOBS = 8  # least test jobs, for as many workers, unless a job would get less than a tenth of _MAX_CHUNK


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
    """The classes in a client's loss (HeteroFL's masked loss, §4).

    Attributes
    ----------
    held
        The classes that the client holds, (classes held,): logits of all others are set to zero. None for all.
    rows
        The rows of the model, by axis, that merge from this client; empty for all.
    absent
        The number of classes without a row in the client's model, because it received only its own classes.
    """

    held: Tensor | None = None
    rows: Mapping[str, Tensor] = field(default_factory=dict)
    absent: int = 0


class Task(Protocol):
    """What a model learns from batches, and how its answers are measured."""

    @property
    def name(self) -> str:
        """Return the name of the task."""

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Return the metrics; the first one determines the best round."""

    @property
    def classes(self) -> int:
        """Return the number of classes, or of words; 0 for tasks without classes."""

    @property
    def draws(self) -> bool:
        """Whether `prepare` draws random numbers."""

    @property
    def local_accuracy(self) -> bool:
        """Whether clients are also tested on their share of the test set, among the classes that they hold."""

    @property
    def cross_entropy(self) -> bool:
        """Whether the loss is our cross-entropy, of which the losses of many clients can be computed at once."""

    @property
    def class_dim(self) -> int:
        """Return the dimension of a model's output that counts classes."""

    @property
    def reads_classes(self) -> bool:
        """Whether a model reads the classes that it predicts, as a language model reads words."""

    @property
    def any_output(self) -> bool:
        """Whether a model may return anything, and not only one tensor."""

    def prepare(self, samples: Any, random: torch.Generator, *, training: bool) -> Batch:
        """Return inputs (N, …) and targets (N, …) from raw samples, on the CPU."""

    def loss(self, model: Callable[..., Any], batch: Batch, mask: OutputMask | None = None) -> LossResult:
        """Return the loss of a model on a batch."""

    def loss_of(self, output: Any, targets: Tensor, mask: OutputMask | None = None) -> tuple[LossResult, Tensor]:
        """Return the loss of a model's output on a batch, and the output after the mask."""

    def objection(self, model: Callable[..., Any], example: Inputs) -> str:
        """Return why a model cannot learn the task, such as that it "sees …"; empty where nothing is wrong."""

    def output_shape(self, inputs: Inputs) -> tuple[int, ...] | None:
        """Return the shape that a model's output on inputs must have; None if it is not known."""

    def answer(self, output: Any, inputs: Inputs, targets: Tensor) -> Answer:
        """Return what a worker keeps of a model's output on a batch."""

    def answer_of(self, model: nn.Module, predict: Callable[[Any], Any], inputs: Inputs, targets: Tensor) -> Answer:
        """Return what a worker keeps of a batch: `answer` to what the method reads in the model's output."""

    def join(self, answers: Iterable[Answer]) -> Answer:
        """Return the answer on several batches from their answers, in order."""

    def measure(self, answer: Answer, data: ClientData) -> dict[str, float | None]:
        """Return the metrics of an answer on all samples of a data set; None for those that are not finite."""

    def test_chunk(self, samples: int) -> int:
        """Return the number of samples that one job tests, of `samples` in total."""

    def test_batch(self, inputs: Inputs, most: int) -> int:
        """Return the batch size of tests, at most `most`."""


class AnyTask:
    """Base class of tasks: what is true of most of them."""

    class_dim: ClassVar[int] = -1
    reads_classes: ClassVar[bool] = False
    any_output: ClassVar[bool] = False

    @property
    def cross_entropy(self) -> bool:
        """Whether the loss is our cross-entropy."""
        return False

    def answer_of(self, model: nn.Module, predict: Callable[[Any], Any], inputs: Inputs, targets: Tensor) -> Answer:
        """Return what `answer` keeps of a model's output."""
        return self.answer(predict(forward(model, inputs)), inputs, targets)

    def answer(self, output: Any, inputs: Inputs, targets: Tensor) -> Answer:
        """Return what a worker keeps of a model's output on a batch."""
        raise NotImplementedError


class SampleTask(AnyTask):
    """Base class of tasks with one target per sample: batches and outputs are used as they are."""

    draws: ClassVar[bool] = False

    def prepare(self, samples: Batch, random: torch.Generator, *, training: bool) -> Batch:
        """Return inputs and targets as they are."""
        del random, training
        return samples

    def objection(self, model: Callable[..., Any], example: Inputs) -> str:
        """Return an empty string: any model can learn the task."""
        del model, example
        return ""

    def answer(self, output: Any, inputs: Inputs, targets: Tensor) -> Any:
        """Return the output, (N, …); `measure` compares it with the targets."""
        del inputs, targets
        return output

    def join(self, answers: Iterable[Any]) -> Any:
        """Return the outputs on all samples, on the CPU.

        >>> SampleTask().join([torch.zeros(1, 3), torch.ones(1, 3)]).shape
        torch.Size([2, 3])
        """
        return torch.cat(list(answers)).cpu()

    def test_chunk(self, samples: int) -> int:
        """Return the number of samples that one job tests.

        >>> SampleTask().test_chunk(10_000), SampleTask().test_chunk(400)
        (1000, 100)
        """
        return min(_MAX_CHUNK, max(_MAX_CHUNK // 10, math.ceil(samples / _MIN_JOBS)))

    def test_batch(self, inputs: Inputs, most: int) -> int:
        """Return `most`, whatever the inputs."""
        del inputs
        return most
