"""`FederatedData`: where the samples of clients and of tests come from, whatever they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor


class ClientData(Protocol):
    """The samples of one client; also those that models are tested on."""

    @property
    def augmented(self) -> bool:
        """Whether `transform` draws random numbers where it is given a generator."""

    @property
    def values(self) -> int:
        """The number of values in all inputs."""

    def __len__(self) -> int: ...

    def batch(self, indices: Tensor) -> Any:
        """Return some samples as they are stored, on the CPU, by their numbers from 0."""

    def transform(self, inputs: Tensor, random: torch.Generator | None) -> Tensor:
        """Return what a model reads of inputs, on the same device; augmented where a generator is given."""

    def targets(self) -> Tensor:
        """Return the targets of all samples."""

    def held(self) -> Tensor:
        """Return the classes, or words, that occur among the samples, sorted; empty for targets without classes."""


class FederatedData(Protocol):
    """The samples of all clients, read when they are asked for, and those that models are tested on."""

    @property
    def name(self) -> str:
        """The name of the data in reports."""

    @property
    def classes(self) -> int:
        """The number of classes, or words; 0 for targets that are no classes."""

    @property
    def model_options(self) -> Mapping[str, Any]:
        """The options of a model that the data decides, such as its number of classes."""

    def example(self, samples: int) -> Tensor:
        """Return an input of a model that holds nothing, (samples, …)."""

    @property
    def test(self) -> ClientData:
        """The test samples."""

    @property
    def validation(self) -> ClientData:
        """The samples that the best round is chosen by: possibly none."""

    def __len__(self) -> int:
        """Return the number of clients."""

    def client(self, number: int) -> ClientData:
        """Return the samples that a client trains on."""

    def size(self, number: int) -> int:
        """Return the number of samples that a client trains on."""

    def test_share(self, number: int) -> Tensor:
        """Return the numbers of the test samples that a client is tested on."""
