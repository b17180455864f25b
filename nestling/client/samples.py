"""Batches of clients' samples, as inputs of a model.

The steps of a batch: the data loads it (CPU), the task prepares it (CPU), words and classes are renumbered if the
client selected rows, it moves to the device, and the data transforms it there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor

from nestling.data.array_clients import joined_samples
from nestling.data.batches import batches, local_samples
from nestling.data.federated import ClientData, FederatedData
from nestling.errors import TrainingError
from nestling.methods.context import Setup
from nestling.methods.rows import ranks
from nestling.model_inputs import Inputs, chosen, joined, shapes, split, to_device
from nestling.seeds import torch_stream
from nestling.tasks.task import Batch

_MAX_VALUES = 2**22  # most input values of a client that are prepared at once: 16 MiB
_MAX_GROUP_VALUES = 2**24  # the same for clients that train together: 64 MiB

# (which clients of a group, the indices of a batch of each) → inputs and targets of all, one after another
GroupBatches = Callable[[Sequence[int], Sequence[Tensor]], Batch]


class Samples:
    """Makes the batches of clients on a device, from the data of all clients."""

    def __init__(self, setup: Setup, data: FederatedData, device: torch.device) -> None:
        self._setup, self._data, self._device = setup, data, device

    def of_client(
        self, client: int, rows: Mapping[str, Tensor], random: torch.Generator
    ) -> tuple[Tensor, Callable[[Tensor], Batch]]:
        """Return the indices of a client's samples, and a function from some of them to a batch for training.

        If the client received only some `rows`, by axis, classes and words are numbered by their indices among these.
        """
        data = self._data.client(client)
        indices = torch.arange(len(data), device="cpu")
        if not self._setup.accelerate or self._draws(data) or rows or data.values > _MAX_VALUES:
            return indices, partial(self._batch, data, rows, random)
        # nothing is drawn, so all samples are prepared once: per batch it takes as long as a step of a small model
        inputs, targets = self._batch(data, rows, random, indices)
        return indices, partial(_rows, inputs, targets)

    def of_group(self, clients: Sequence[int], random: Sequence[torch.Generator]) -> tuple[list[Tensor], GroupBatches]:
        """Return the indices of several clients' samples, and a function from some of them to joined batches."""
        data = [self._data.client(client) for client in clients]
        indices = [torch.arange(len(one), device="cpu") for one in data]
        together = None if any(map(self._draws, data)) else joined_samples(data)
        if together is None:
            return indices, partial(self._joined, data, random)
        first = [0, *accumulate(map(len, data))]
        read: Callable[[Tensor], Batch] = partial(self._batch, together, {}, random[0])  # nothing is drawn
        training = self._setup.training
        again = any(local_samples(training, len(one)) > len(one) for one in data)  # samples are read more than once
        if again and together.values <= _MAX_GROUP_VALUES:
            inputs, targets = read(torch.arange(len(together), device="cpu"))
            read = partial(_rows, inputs, targets)

        def batch(who: Sequence[int], some: Sequence[Tensor]) -> Batch:
            return read(torch.cat([part + first[k] for k, part in zip(who, some, strict=True)]))

        return indices, batch

    def for_statistics(self, client: int, size: int) -> Iterator[Inputs]:
        """Yield the inputs of a client's samples in batches, for the statistics of norms."""
        data, task = self._data.client(client), self._setup.task
        random = torch_stream(self._setup.seed, "mask", "statistics", client)
        for part in batches(torch.arange(len(data), device="cpu"), size):
            inputs, _ = task.prepare(data.batch(part), random, training=True)
            yield data.transform(to_device(inputs, self._device), None)

    def for_test(self, part: str | int, start: int, stop: int, most: int) -> Iterator[Batch]:
        """Yield samples `start` to `stop` of the test set, the validation set or a client, at most `most` at a time."""
        task = self._setup.task
        held_out = self._data.test if part == "test" else self._data.validation
        data = self._data.client(part) if isinstance(part, int) else held_out
        random = torch_stream(self._setup.seed, "mask", part, start)  # the same in every round
        inputs, targets = task.prepare(data.batch(torch.arange(start, stop, device="cpu")), random, training=False)
        size = task.test_batch(inputs, most)
        for part_inputs, part_targets in zip(split(inputs, size), targets.split(size), strict=True):
            yield data.transform(to_device(part_inputs, self._device), None), part_targets.to(self._device)

    def _draws(self, data: ClientData) -> bool:
        return data.augmented or self._setup.task.draws

    def _batch(self, data: ClientData, rows: Mapping[str, Tensor], random: torch.Generator, indices: Tensor) -> Batch:
        inputs, targets = self._setup.task.prepare(data.batch(indices), random, training=True)
        for axis in self._setup.token_axes if rows else ():
            inputs = ranks(rows[axis], inputs)
        targets = ranks(rows[str(self._setup.output_axis)], targets) if rows else targets
        return data.transform(to_device(inputs, self._device), random), targets.to(self._device)

    def _joined(
        self,
        data: Sequence[ClientData],
        random: Sequence[torch.Generator],
        who: Sequence[int],
        indices: Sequence[Tensor],
    ) -> Batch:
        parts = [self._batch(data[k], {}, random[k], part) for k, part in zip(who, indices, strict=True)]
        if len({shapes(inputs) for inputs, _ in parts}) > 1:
            raise TrainingError("clients of a group have sequences of different lengths")
        return joined([inputs for inputs, _ in parts]), torch.cat([targets for _, targets in parts])


def _rows(inputs: Inputs, targets: Tensor, indices: Tensor) -> Batch:
    return chosen(inputs, indices), targets[indices]
