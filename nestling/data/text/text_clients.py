"""Samples of clients that are sequences of words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from nestling.data.text.corpus import TextShares


@dataclass(frozen=True, eq=False)
class TextSamples:
    """Some sequences of words: of all `sequences`, (N, width), those with some `numbers`, (samples,)."""

    sequences: Tensor
    numbers: Tensor
    augmented: bool = False

    @property
    def values(self) -> int:
        """The number of words in all sequences."""
        return len(self) * self.sequences.shape[1]

    def __len__(self) -> int:
        return len(self.numbers)

    def batch(self, indices: Tensor) -> Tensor:
        """Return some sequences, (samples, width), by their numbers from 0."""
        return self.sequences[self.numbers[indices]]

    def transform(self, inputs: Tensor, random: torch.Generator | None) -> Tensor:
        """Return the inputs as they are."""
        del random
        return inputs

    def targets(self) -> Tensor:
        """Return all sequences: which words of them are asked for is a matter of the task."""
        return self.sequences[self.numbers]


@dataclass(frozen=True, eq=False)
class TextClients:
    """A text that is dealt out to clients, and the sequences that models are tested on.

    Attributes
    ----------
    shares
        The sequences of clients.
    held_out
        Reads those of ``"test"`` or ``"validation"``, (sequences, width), when they are first asked for: all users of
        a population may have a part in them.
    """

    shares: TextShares
    held_out: Callable[[str], Tensor]

    def client(self, number: int) -> TextSamples:
        """Return the sequences that a client trains on."""
        return TextSamples(self.shares.sequences[number], self.shares.train[number])

    @cached_property
    def test(self) -> TextSamples:
        """The test sequences."""
        return _all(self.held_out("test"))

    @cached_property
    def validation(self) -> TextSamples:
        """The sequences that the best round is chosen by."""
        return _all(self.held_out("validation"))


def _all(sequences: Tensor) -> TextSamples:
    return TextSamples(sequences, torch.arange(len(sequences), device="cpu"))
