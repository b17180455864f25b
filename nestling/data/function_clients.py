"""Clients whose samples are returned by a function: from files of your own, a database or a generator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from nestling.data.lazy import Lazy
from nestling.errors import DataError


@dataclass(frozen=True, eq=False)
class TensorSamples:
    """Samples in memory: model inputs (N, …) and targets (N, …)."""

    inputs: Tensor
    outputs: Tensor
    augmented: bool = False

    def check(self, what: str, classes: int) -> TensorSamples:
        """Return these samples; raise `DataError`, which calls them `what`, if a model cannot learn from them."""
        pair: tuple[object, object] = self.inputs, self.outputs
        if not all(isinstance(value, Tensor) for value in pair):
            types = " and ".join(f"a {type(value).__name__}" for value in pair)
            raise DataError(f"{what} must be tensors of inputs and targets, not {types}")
        if len(self.inputs) != len(self.outputs):
            raise DataError(f"{what} are {len(self.inputs)} inputs, but {len(self.outputs)} targets")
        for part in (self.inputs, self.outputs):
            if part.is_floating_point() and not bool(part.isfinite().all()):
                raise DataError(f"{what} hold values that are not finite numbers")
        if classes and len(self.outputs):
            if self.outputs.is_floating_point():
                raise DataError(f"{what} have targets of {self.outputs.dtype}: classes are whole numbers")
            low, high = int(self.outputs.min()), int(self.outputs.max())
            if low < 0 or high >= classes:
                raise DataError(
                    f"{what} have the target {low if low < 0 else high}, not one of the {classes} classes from 0"
                )
        elif not classes and not self.outputs.is_floating_point():
            raise DataError(f"{what} have targets of {self.outputs.dtype}: give the number of classes, or use floats")
        return self

    @property
    def values(self) -> int:
        """The number of values in all inputs."""
        return self.inputs.numel()

    def __len__(self) -> int:
        return len(self.inputs)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of the samples with these indices."""
        return self.inputs[indices], self.outputs[indices]

    def transform(self, inputs: Tensor, random: torch.Generator | None) -> Tensor:
        """Return the inputs as they are."""
        del random
        return inputs

    def targets(self) -> Tensor:
        """Return the targets of all samples."""
        return self.outputs

    def held(self) -> Tensor:
        """Return the classes that occur, sorted; empty if targets are not classes."""
        return torch.empty(0, dtype=torch.long) if self.outputs.is_floating_point() else self.outputs.unique()


@dataclass(frozen=True, eq=False)
class FunctionClients:
    """Clients whose samples are read by a function.

    Attributes
    ----------
    read
        A module-level function that returns the inputs (N, …) and targets (N, …) of a client; called on access, in the
        process that trains the client. It must return the same samples every time.
    clients
        The number of clients.
    tested
        The inputs and targets of the test samples.
    classes
        The number of classes; 0 if targets are not classes.
    name
        The name of the data in reports.

    Examples
    --------
    >>> def read(client):
    ...     return torch.full((4, 2), float(client)), torch.arange(4) % 2
    >>> data = FunctionClients(read, clients=3, tested=read(0), classes=2)
    >>> data.size(1), data.client(2).held()
    (4, tensor([0, 1]))
    """

    read: Callable[[int], tuple[Tensor, Tensor]]
    clients: int
    tested: tuple[Tensor, Tensor]
    classes: int = 0
    name: str = "own data"

    def __len__(self) -> int:
        return self.clients

    @property
    def model_options(self) -> dict[str, int]:
        """The number of classes and of channels, and the size of images."""
        shape = self.tested[0].shape[1:]
        return {"classes": self.classes, "channels": shape[0], "size": shape[-1]}

    @cached_property
    def _clients(self) -> Lazy[TensorSamples]:
        return Lazy(
            self.clients,
            lambda number: TensorSamples(*self.read(number)).check(f"the samples of client {number}", self.classes),
        )

    def client(self, number: int) -> TensorSamples:
        """Return the samples that a client trains on."""
        return self._clients[number]

    def size(self, number: int) -> int:
        """Return the number of samples that a client trains on."""
        return len(self.client(number))

    @cached_property
    def test(self) -> TensorSamples:
        """The test samples."""
        return TensorSamples(*self.tested).check("the test samples", self.classes)

    @property
    def validation(self) -> TensorSamples:
        """No samples: clients train on all of their samples."""
        return TensorSamples(self.tested[0][:0], self.tested[1][:0])

    def test_share(self, number: int) -> Tensor:
        """Return no samples: clients have no test share."""
        del number
        return torch.empty(0, dtype=torch.long)

    def example(self, samples: int) -> Tensor:
        """Return a model input of zeros, (samples, …)."""
        return torch.zeros(samples, *self.tested[0].shape[1:], dtype=self.tested[0].dtype)

    def __getstate__(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in ("read", "clients", "tested", "classes", "name")}
