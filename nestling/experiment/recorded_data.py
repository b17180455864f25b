"""`DataRecord`: what a run directory records of its data, so that models are built and loaded without the data.

`RecordedData` takes the place of the data: it knows shapes and classes, and opens the data itself when samples are
asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar, cast

import msgspec
import torch

from nestling.data.federated import ClientData, FederatedData
from nestling.errors import ConfigError
from nestling.model_inputs import Inputs, arguments
from nestling.tasks import Classification, LanguageTask, Regression, Segmentation, Task
from nestling.tasks.task import Metric, SampleTask
from nestling.tasks.token_task import TokenTask

_TASKS: dict[str, Callable[..., Task]] = {
    kind.__name__: kind for kind in (Classification, LanguageTask, Regression, Segmentation, TokenTask)
}


class TensorRecord(msgspec.Struct, frozen=True):
    """One input of a model: its name, if it is an argument by name, the shape of a sample, and its type."""

    shape: list[int]
    dtype: str
    name: str = ""


class DataRecord(msgspec.Struct, frozen=True):
    """What models depend on in the data.

    Attributes
    ----------
    name, classes, model_options
        As in `FederatedData`.
    inputs
        The inputs of a model.
    several
        Whether these are several arguments, even if there is only one.
    task, task_settings
        The class of the task and its settings, of tasks of ours; of others, the number of its classes.
    """

    name: str
    classes: int
    model_options: dict[str, Any]
    inputs: list[TensorRecord]
    several: bool
    task: str
    task_settings: dict[str, Any]

    @classmethod
    def of(cls, data: FederatedData, task: Task) -> DataRecord:
        """Record what models depend on in data and its task."""
        example = data.example(1)
        args, kwargs = arguments(example)
        tensors = [*(("", value) for value in args), *kwargs.items()]
        known = _TASKS.get(type(task).__name__) is type(task)
        names = [field.name for field in fields(cast(Any, task))] if known else []
        settings = {name: getattr(task, name) for name in names}
        return cls(
            name=data.name,
            classes=data.classes,
            model_options=msgspec.to_builtins(dict(data.model_options)),
            inputs=[
                TensorRecord(list(value.shape[1:]), str(value.dtype).removeprefix("torch."), name)
                for name, value in tensors
            ],
            several=isinstance(example, tuple),
            task=type(task).__name__ if known else "",
            task_settings=settings or {"classes": task.classes, "reads_classes": task.reads_classes},
        )

    def known_task(self) -> Task:
        """Return the task; of one that is not ours, as much as building models needs."""
        return _TASKS[self.task](**self.task_settings) if self.task else UnknownTask(**self.task_settings)


@dataclass(frozen=True)
class UnknownTask(SampleTask):
    """Stands for a task of the user's own that was not handed in again: models can be built, but not tested."""

    name: ClassVar[str] = "own task"
    metrics: ClassVar[tuple[Metric, ...]] = (Metric("loss", "lower"),)
    local_accuracy: ClassVar[bool] = False
    classes: int = 0
    reads_classes: bool = False  # type: ignore[misc]

    def loss(self, model: Any, batch: Any, mask: Any = None) -> Any:
        """Raise: the loss is not known."""
        raise ConfigError("the run was started in Python with its own task, which must be handed in again: task=…")

    def loss_of(self, output: Any, targets: Any, mask: Any = None) -> Any:
        """Raise: the loss is not known."""
        return self.loss(output, targets)

    def output_shape(self, inputs: Inputs) -> None:
        """Return None: it is not known."""
        del inputs

    def measure(self, answer: Any, data: ClientData) -> dict[str, float | None]:
        """Raise: the metrics are not known."""
        result: dict[str, float | None] = self.loss(answer, data)
        return result


@dataclass(frozen=True, eq=False)
class RecordedData:
    """`FederatedData` that is opened when samples are asked for.

    Attributes
    ----------
    record
        What is known without the data.
    open
        Opens the data; raises if it is not what the run began with.
    """

    record: DataRecord
    open: Callable[[], FederatedData]

    @property
    def name(self) -> str:
        """The name of the data."""
        return self.record.name

    @property
    def classes(self) -> int:
        """The number of classes."""
        return self.record.classes

    @property
    def model_options(self) -> dict[str, Any]:
        """The options of a model that follow from the data."""
        return self.record.model_options

    def example(self, samples: int) -> Inputs:
        """Return inputs of ones, (samples, …): an attention mask of zeros would leave nothing to attend to."""
        tensors = [
            (one.name, torch.ones(samples, *one.shape, dtype=getattr(torch, one.dtype))) for one in self.record.inputs
        ]
        if tensors[0][0]:
            return dict(tensors)
        return tuple(value for _, value in tensors) if self.record.several else tensors[0][1]

    @cached_property
    def _opened(self) -> FederatedData:
        return self.open()

    @property
    def test(self) -> ClientData:
        """The test samples."""
        return self._opened.test

    @property
    def validation(self) -> ClientData:
        """The samples that the best round is chosen by."""
        return self._opened.validation

    def __len__(self) -> int:
        return len(self._opened)

    def client(self, number: int) -> ClientData:
        """Return the samples that a client trains on."""
        return self._opened.client(number)

    def size(self, number: int) -> int:
        """Return the number of samples that a client trains on."""
        return self._opened.size(number)

    def test_share(self, number: int) -> torch.Tensor:
        """Return the indices of the test samples that a client is tested on."""
        return self._opened.test_share(number)
