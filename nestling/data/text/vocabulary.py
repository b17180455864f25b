"""`Vocabulary`: the words a model knows, by number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from nestling.errors import DataError

UNKNOWN, BEGIN, END = "<oov>", "<bos>", "<eos>"


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Words by number, from 0; those that can be predicted, and no others.

    Attributes
    ----------
    words
        The words, each once.
    unknown, begin, end
        The numbers of the word that stands for all others, and of those that begin and end a sentence; −1 for none.

    Examples
    --------
    >>> vocabulary = built({"the": 9, "cat": 2, "dog": 2}, size=5)
    >>> vocabulary.words
    ('<oov>', '<bos>', '<eos>', 'the', 'cat')
    >>> vocabulary.ids("the dog sat".split())
    [3, 0, 0]
    """

    words: tuple[str, ...]
    unknown: int = -1
    begin: int = -1
    end: int = -1

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def index(self) -> dict[str, int]:
        """The number of every word."""
        return {word: number for number, word in enumerate(self.words)}

    @property
    def special(self) -> tuple[int, ...]:
        """The numbers of words that belong to everyone, whatever they wrote."""
        return tuple(sorted(number for number in (self.unknown, self.begin, self.end) if number >= 0))

    def ids(self, words: Iterable[str]) -> list[int]:
        """Return the numbers of words; unknown ones are left out where nothing stands for them."""
        known = [self.index.get(word, self.unknown) for word in words]
        return known if self.unknown >= 0 else [number for number in known if number >= 0]


def built(counts: Mapping[str, int], size: int = 0) -> Vocabulary:
    """Return a vocabulary of `size` words (0: of all): three special ones, then the most frequent.

    Among words as frequent as each other, the first in the alphabet come first.
    """
    special = (UNKNOWN, BEGIN, END)
    if size and size <= len(special):
        raise DataError(f"a vocabulary has at least {len(special) + 1} words, of which 3 are special, not {size}")
    ranked = sorted((-count, word) for word, count in counts.items() if word not in special)
    words = [word for _, word in ranked[: size - len(special) if size else None]]
    return Vocabulary((*special, *words), unknown=0, begin=1, end=2)


def packed(words: Iterable[str]) -> NDArray[np.uint8]:
    """Return words, or names, as an array of bytes, which can be kept beside other arrays.

    >>> unpacked(packed(["the", "naïve"]))
    ('the', 'naïve')
    """
    listed = list(words)
    if broken := next((word for word in listed if "\n" in word), None):
        raise DataError(f"the name {broken!r} holds the end of a line: use another")
    return np.frombuffer("\n".join(listed).encode(), dtype=np.uint8)


def unpacked(array: NDArray[np.uint8], most: int = 0) -> tuple[str, ...]:
    """Return the words that `packed` made an array of, or the first so many; later ones cost nothing.

    >>> unpacked(packed(["the", "naïve", "cat"]), 2)
    ('the', 'naïve')
    """
    ends = np.flatnonzero(array == ord("\n")) if most else array[:0]
    if most and len(ends) >= most:
        array = array[: ends[most - 1]]
    return tuple(array.tobytes().decode().split("\n")) if len(array) else ()
