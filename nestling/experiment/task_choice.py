"""The task of own data: named, handed in, a loss function, or guessed from the targets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from nestling.data.own.own_clients import OwnArrays, OwnClients
from nestling.errors import ConfigError, nearest
from nestling.tasks import Classification, OwnTask, Regression, Segmentation, Task, next_token
from nestling.tasks.own_task import LossFunction, MetricFunction, own_task
from nestling.tasks.token_task import TokenTask

Own = OwnClients | OwnArrays
_BY_NAME: dict[str, Callable[[int, bool], Task]] = {
    "classification": Classification,
    "segmentation": Segmentation,
    "regression": lambda _classes, _accelerate: Regression(),
    "next-token": lambda classes, accelerate: next_token(classes, accelerate=accelerate),
}
_KINDS = {"classification": "classes", "segmentation": "classes", "regression": "numbers"}
_MASKED = "task='masked-token' needs the id of the mask token: give task=nestling.tasks.masked_token(mask=…)"


def with_task(
    data: Own,
    task: Task | str | None = None,
    *,
    loss: LossFunction | None = None,
    metrics: Mapping[str, MetricFunction] | None = None,
    lower_is_better: Iterable[str] = (),
    classes: int = 0,
    output: Any = None,
    accelerate: bool = True,
) -> tuple[Own, Task]:
    """Return own data whose targets were checked, and its task.

    Parameters
    ----------
    data
        The data.
    task
        A name, a task, or None to choose by the targets: whole numbers are classes, others a regression.
    loss, metrics, lower_is_better
        As `nestling.federate` takes them.
    classes
        The number of classes, or tokens; 0 for that of the model's outputs or, without a model, of the labels.
    output
        What the model returns for some samples; None if there is no model yet.
    accelerate
        Whether our faster kernels may be used.
    """
    if loss is not None:
        if task is not None:
            raise ConfigError("give a task or a loss function, not both")
        return data.with_targets("any", 0), own_task(loss, metrics, lower_is_better, data.test.label)
    if metrics or tuple(lower_is_better):
        raise ConfigError("metrics of your own go with a loss function of your own: give loss=…, too")
    if task is not None and not isinstance(task, str):
        return _with_own_task(data, task, classes or _classes_of(output, task.class_dim))
    name = _guess(data) if task is None else task
    if name == "masked-token":
        raise ConfigError(_MASKED)
    if name not in _BY_NAME:
        raise ConfigError(f"there is no task {name!r}{nearest(name, [*_BY_NAME, 'masked-token'])}")
    kind = _KINDS.get(name, "any")
    count = 0
    if kind != "numbers":
        dim = 1 if name == "segmentation" else -1
        count = classes or _classes_of(output, dim) or (data.most_classes() if kind == "classes" else 0)
        if not count:
            raise ConfigError(
                f"how many tokens there are is not known before there is a model: give classes=… for {name}"
            )
    return data.with_targets(kind, count), _BY_NAME[name](count, accelerate)


def task_by_targets(data: Own, classes: int, *, accelerate: bool) -> Task:
    """Return the task that the targets of checked data suggest."""
    return _BY_NAME[_guess(data)](classes, accelerate)


def _with_own_task(data: Own, task: Task, classes: int) -> tuple[Own, Task]:
    """Return data and a task that was handed in; one of tokens gets their number from the model."""
    if isinstance(task, OwnTask):
        return data.with_targets("any", 0), replace(task, label=data.test.label)
    if isinstance(task, TokenTask) and task.classes <= 1:
        task = replace(task, classes=classes)
    kind = _KINDS.get(task.name, "classes" if task.classes and not task.reads_classes else "any")
    return data.with_targets(kind, task.classes), task


def _guess(data: Own) -> str:
    targets = data.test.outputs
    if not data.test.has_targets:
        raise ConfigError(
            "the samples have no targets, so their task is not known: give task='next-token', "
            "task=nestling.tasks.masked_token(mask=…), or loss=… of your own"
        )
    if targets.is_floating_point():
        return "regression"
    if targets.dim() == 1:
        return "classification"
    if targets.dim() == 3:
        return "segmentation"
    shape = tuple(targets.shape[1:])
    instead = ", or targets of shape (N,) for classification" if shape == (1,) else ""
    raise ConfigError(
        f"the task of whole-number targets of shape (N, {', '.join(map(str, shape))}) is not known: give task=… or "
        f"loss=…{instead}"
    )


def _classes_of(output: Any, dim: int) -> int:
    """Return the number of classes in a model's output; 0 if that is no tensor."""
    return output.shape[dim] if isinstance(output, Tensor) and output.dim() > max(1, dim) else 0
