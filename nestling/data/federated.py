"""`FederatedData`: the samples of all clients and of the test set, whatever their kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor


class ClientData(Protocol):
    """The samples of one client, or those of the test or validation set."""

    @property
    def augmented(self) -> bool:
        """Whether `transform` draws random numbers if it is given a generator."""

    @property
    def values(self) -> int:
        """The number of values in all inputs."""

    def __len__(self) -> int: ...

    def batch(self, indices: Tensor) -> Any:
        """Return the samples with these indices, from 0, as they are stored, on the CPU."""

    def transform(self, inputs: Tensor, random: torch.Generator | None) -> Tensor:
        """Return model inputs, on the same device; augmented if a generator is given."""

    def targets(self) -> Tensor:
        """Return the targets of all samples."""

    def held(self) -> Tensor:
        """Return the classes, or words, that occur among the samples, sorted; empty for targets without classes."""


class FederatedData(Protocol):
    """The samples of all clients, read on access, and those of the test and validation sets."""

    @property
    def name(self) -> str:
        """The name of the data in reports."""

    @property
    def classes(self) -> int:
        """The number of classes, or words; 0 if targets are not classes."""

    @property
    def model_options(self) -> Mapping[str, Any]:
        """The options of a model that follow from the data, such as its number of classes."""

    def example(self, samples: int) -> Tensor:
        """Return a model input of zeros, (samples, …)."""

    @property
    def test(self) -> ClientData:
        """The test samples."""

    @property
    def validation(self) -> ClientData:
        """The samples that the best round is chosen by; may be empty."""

    def __len__(self) -> int:
        """Return the number of clients."""

    def client(self, number: int) -> ClientData:
        """Return the samples that a client trains on."""

    def size(self, number: int) -> int:
        """Return the number of samples that a client trains on."""

    def test_share(self, number: int) -> Tensor:
        """Return the indices of the test samples that a client is tested on."""
