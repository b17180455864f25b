"""Clients whose samples are sequences of words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from nestling.data.text.corpus import Text, TextShares


@dataclass(frozen=True, eq=False)
class TextSamples:
    """Sequences of words: the rows of `sequences`, (N, width), with the indices `numbers`, (samples,).

    `words` returns the words that occur in them; it is a function because finding them takes long for some texts.
    """

    sequences: Tensor
    numbers: Tensor
    words: Callable[[], Tensor] | None = None
    augmented: bool = False

    @property
    def values(self) -> int:
        """The number of words in all sequences."""
        return len(self) * self.sequences.shape[1]

    def __len__(self) -> int:
        return len(self.numbers)

    def batch(self, indices: Tensor) -> Tensor:
        """Return the sequences with these indices, (samples, width)."""
        return self.sequences[self.numbers[indices]]

    def transform(self, inputs: Tensor, random: torch.Generator | None) -> Tensor:
        """Return the inputs as they are."""
        del random
        return inputs

    def targets(self) -> Tensor:
        """Return all sequences: the task decides which of their words are predicted."""
        return self.sequences[self.numbers]

    def held(self) -> Tensor:
        """Return the words that occur, sorted."""
        return self.targets().unique() if self.words is None else self.words()


@dataclass(frozen=True, eq=False)
class TextClients:
    """A text that is divided among clients.

    Attributes
    ----------
    text, shares
        The text, and its partition among the clients.
    held_out
        Reads the sequences for ``"test"`` or ``"validation"``, (sequences, width); called on first access, because they
        may come from all users of a population.
    """

    text: Text
    shares: TextShares
    held_out: Callable[[str], Tensor]

    @property
    def name(self) -> str:
        """The name of the text."""
        return self.text.name

    @property
    def classes(self) -> int:
        """The number of words that are predicted."""
        return self.text.classes

    @property
    def model_options(self) -> dict[str, Any]:
        """The size of the vocabulary, its special words, and the length of sequences."""
        return {"vocabulary": self.text.classes, "special": self.text.special, "positions": self.text.length}

    def example(self, samples: int) -> Tensor:
        """Return a model input of zeros, (samples, length)."""
        return self.text.example(samples)

    def __len__(self) -> int:
        return len(self.shares.train)

    def client(self, number: int) -> TextSamples:
        """Return the sequences that a client trains on."""
        shares = self.shares
        return TextSamples(shares.sequences[number], shares.train[number], lambda: shares.labels[number])

    def size(self, number: int) -> int:
        """Return the number of sequences that a client trains on."""
        return len(self.shares.train[number])

    def test_share(self, number: int) -> Tensor:
        """Return no sequences: clients have no test share of a text."""
        del number
        return torch.empty(0, dtype=torch.long)

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
