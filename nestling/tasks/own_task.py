"""`OwnTask`: the user's own loss and metrics, as functions of a model and a batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from nestling.data.federated import ClientData
from nestling.errors import ConfigError, nearest
from nestling.model_inputs import Inputs
from nestling.tasks.task import Batch, LossResult, Metric, OutputMask, SampleTask

LossFunction = Callable[[nn.Module, Any], Tensor]
MetricFunction = Callable[[nn.Module, Any], Any]
Sums = dict[str, tuple[float, int]]  # metric → its sum over samples, and their number


@dataclass(frozen=True)
class OwnTask(SampleTask):
    """A loss and metrics of the user's own.

    A batch is what the user's data is made of: a pair of inputs and targets, a dictionary with the targets in it, or
    inputs alone. Metrics are means over a batch; those of batches are weighted by their samples.

    Attributes
    ----------
    function
        Returns the mean loss of a model on a batch, a scalar.
    metric_functions
        Metrics by name: each returns a number for a model and a batch.
    metrics
        The metrics, the loss among them; the first one chooses the best round.
    label
        The key of the targets in a batch that is a dictionary; empty for other batches.

    Examples
    --------
    >>> import torch
    >>> task = OwnTask(lambda model, batch: (model(batch[0]) - batch[1]).abs().mean())
    >>> task.loss(nn.Identity(), (torch.ones(4), torch.zeros(4))).value
    tensor(1.)
    """

    name: ClassVar[str] = "own loss"
    classes: ClassVar[int] = 0
    local_accuracy: ClassVar[bool] = False
    any_output: ClassVar[bool] = True
    function: LossFunction
    metric_functions: tuple[tuple[str, MetricFunction], ...] = ()
    metrics: tuple[Metric, ...] = (Metric("loss", "lower"),)
    label: str = ""

    def loss(self, model: Callable[..., Any], batch: Batch, mask: OutputMask | None = None) -> LossResult:
        """Return the loss of a model on a batch."""
        del mask
        return LossResult(self._value(model, batch), len(batch[1]))

    def loss_of(self, output: Any, targets: Tensor, mask: OutputMask | None = None) -> tuple[LossResult, Tensor]:
        """Raise: the loss of an output alone is not known."""
        raise ConfigError("this method needs logits, and a loss of your own has none: use another method")

    def output_shape(self, inputs: Inputs) -> None:
        """Return None: a model may return anything."""
        del inputs

    def answer_of(self, model: nn.Module, predict: Callable[[Any], Any], inputs: Inputs, targets: Tensor) -> Sums:
        """Return the sums over samples of the loss and of all metrics."""
        del predict
        batch, count = (inputs, targets), len(targets)
        values = {name: _number(name, function(model, self.whole(batch))) for name, function in self.metric_functions}
        values["loss"] = self._value(model, batch).item()
        return {name: (value * count, count) for name, value in values.items()}

    def join(self, answers: Iterable[Sums]) -> Sums:
        """Add sums up, in the order given."""
        total: Sums = {}
        for answer in answers:
            for name, (value, count) in answer.items():
                before = total.get(name, (0.0, 0))
                total[name] = (before[0] + value, before[1] + count)
        return total

    def measure(self, answer: Sums, data: ClientData | None = None) -> dict[str, float | None]:
        """Return the means; None for those that are not finite."""
        del data
        means = {name: value / count if count else math.nan for name, (value, count) in answer.items()}
        return {name: mean if math.isfinite(mean) else None for name, mean in means.items()}

    def whole(self, batch: Batch) -> Any:
        """Return a batch as the user's functions get it."""
        inputs, targets = batch
        if targets.dim() == 2 and not targets.shape[1]:  # there are none
            return inputs
        return {**inputs, self.label: targets} if self.label else (inputs, targets)

    def _value(self, model: Any, batch: Batch) -> Tensor:
        value = self.function(model, self.whole(batch))
        if not isinstance(value, Tensor) or value.dim() or not value.is_floating_point():
            kind = (
                f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
            )
            raise ConfigError(f"the loss function must return one number, the mean over the batch, not {kind}")
        return value


def own_task(
    loss: LossFunction,
    metrics: Mapping[str, MetricFunction] | None = None,
    lower_is_better: Iterable[str] = (),
    label: str = "",
) -> OwnTask:
    """Return the task of a loss function, and of metrics by name.

    >>> task = own_task(lambda model, batch: model(batch).mean(), {"bias": lambda model, batch: 0.0}, ["bias"])
    >>> task.metrics
    (Metric(name='bias', better='lower', percent=False), Metric(name='loss', better='lower', percent=False))
    """
    given, lower = dict(metrics or {}), set(lower_is_better)
    if "loss" in given:
        raise ConfigError("the metric 'loss' is what the loss function returns: give yours another name")
    unknown = sorted(lower - given.keys())
    if unknown:
        raise ConfigError(
            f"lower_is_better names {unknown[0]!r}, which is none of the metrics{nearest(unknown[0], given)}"
        )
    for name, function in {"loss": loss, **given}.items():
        if not callable(function):
            raise ConfigError(f"{name!r} must be a function of a model and a batch, not a {type(function).__name__}")
    own = tuple(Metric(name, "lower" if name in lower else "higher") for name in given)
    return OwnTask(loss, tuple(given.items()), (*own, Metric("loss", "lower")), label)


def _number(name: str, value: Any) -> float:
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    if not isinstance(value, int | float):
        raise ConfigError(
            f"the metric {name!r} must be one number, the mean over the batch, not a {type(value).__name__}"
        )
    return float(value)
