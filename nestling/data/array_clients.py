"""Clients whose samples are parts of arrays in memory: images, or other samples with one target each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from nestling.data.augment import AUGMENT
from nestling.data.dataset import Dataset
from nestling.data.federated import ClientData
from nestling.data.partition import Partition


@dataclass(frozen=True, eq=False)
class ArraySamples:
    """Some of the samples of a dataset.

    Attributes
    ----------
    dataset
        The dataset, which defines how inputs are augmented and normalised.
    inputs, outputs
        All inputs and targets of the training or of the test set, (N, …) and (N,).
    numbers
        The indices of the samples in these arrays, (samples,).
    classes
        The classes that `held` returns, sorted; None for those that occur.
    """

    dataset: Dataset
    inputs: Tensor
    outputs: Tensor
    numbers: Tensor
    classes: Tensor | None = None

    @property
    def augmented(self) -> bool:
        """Whether training draws random crops and the like."""
        return self.dataset.augment != "none"

    @property
    def values(self) -> int:
        """The number of values in all inputs."""
        return len(self) * math.prod(self.dataset.shape)

    def __len__(self) -> int:
        return len(self.numbers)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of the samples with these indices."""
        numbers = self.numbers[indices]
        return self.inputs[numbers], self.outputs[numbers]

    def transform(self, inputs: Tensor, random: torch.Generator | None) -> Tensor:
        """Return model inputs: augmented if a generator is given, and normalised."""
        if random is not None and self.augmented:
            inputs = AUGMENT[self.dataset.augment](inputs, random)
        return self.dataset.ready(inputs)

    def targets(self) -> Tensor:
        """Return the targets of all samples."""
        return self.outputs[self.numbers]

    def held(self) -> Tensor:
        """Return the classes that occur, sorted."""
        return self.targets().unique() if self.classes is None else self.classes


def joined_samples(parts: Sequence[ClientData]) -> ArraySamples | None:
    """Return the samples of several clients as one, or None where they are not parts of the same arrays.

    One large batch of these is read faster than a small one of every client.
    """
    samples = [part for part in parts if isinstance(part, ArraySamples)]
    if len(samples) < len(parts) or any(part.inputs is not samples[0].inputs for part in samples):
        return None
    return replace(samples[0], numbers=torch.cat([part.numbers for part in samples]), classes=None)


@dataclass(frozen=True, eq=False)
class ArrayClients:
    """A dataset that is divided among clients.

    Attributes
    ----------
    dataset, partition
        The data, and its partition among the clients.
    held_back
        The indices of the training samples for validation: the best round is chosen by them.
    tested
        The number of test samples to use; 0 for all.

    Examples
    --------
    >>> from nestling.data import load, partition
    >>> digits = load("digits")
    >>> data = ArrayClients(digits, partition(digits, 10, "iid"), torch.arange(0))
    >>> inputs, targets = data.client(3).batch(torch.arange(2))
    >>> inputs.shape, targets.shape, len(data.test)
    (torch.Size([2, 1, 8, 8]), torch.Size([2]), 359)
    """

    dataset: Dataset
    partition: Partition
    held_back: Tensor
    tested: int = 0

    @property
    def name(self) -> str:
        """The name of the dataset."""
        return self.dataset.name

    @property
    def classes(self) -> int:
        """The number of classes."""
        return self.dataset.classes

    @property
    def model_options(self) -> dict[str, int]:
        """The number of classes and of channels, and the size of images."""
        shape = self.dataset.shape
        return {"classes": self.dataset.classes, "channels": shape[0], "size": shape[-1]}

    def example(self, samples: int) -> Tensor:
        """Return a model input of zeros, (samples, *shape)."""
        return self.dataset.example(samples)

    def __len__(self) -> int:
        return len(self.partition.train)

    def client(self, number: int) -> ArraySamples:
        """Return the samples that a client trains on."""
        data, shares = self.dataset, self.partition
        return ArraySamples(data, data.inputs, data.targets, shares.train[number], shares.labels[number])

    def size(self, number: int) -> int:
        """Return the number of samples that a client trains on."""
        return len(self.partition.train[number])

    def test_share(self, number: int) -> Tensor:
        """Return the indices of the test samples that a client is tested on."""
        return self.partition.test[number]

    @cached_property
    def test(self) -> ArraySamples:
        """The test samples."""
        dataset = self.dataset
        count = len(dataset.test_targets)
        numbers = torch.arange(min(count, self.tested or count), device="cpu")
        return ArraySamples(dataset, dataset.test_inputs, dataset.test_targets, numbers)

    @cached_property
    def validation(self) -> ArraySamples:
        """The training samples that the best round is chosen by."""
        return ArraySamples(self.dataset, self.dataset.inputs, self.dataset.targets, self.held_back)
