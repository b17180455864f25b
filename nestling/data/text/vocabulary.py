"""`Vocabulary`: the words a model knows, and their ids."""

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
    """The words that can be predicted, by id from 0.

    Attributes
    ----------
    words
        The words, each once.
    unknown, begin, end
        The ids of the word for all unknown words, and of those that begin and end a sentence; −1 for none.

    Examples
    --------
    >>> vocabulary = build_vocabulary({"the": 9, "cat": 2, "dog": 2}, size=5)
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
        """The id of every word."""
        return {word: number for number, word in enumerate(self.words)}

    @property
    def special(self) -> tuple[int, ...]:
        """The ids of the special words, which every client has."""
        return tuple(sorted(number for number in (self.unknown, self.begin, self.end) if number >= 0))

    def ids(self, words: Iterable[str]) -> list[int]:
        """Return the ids of words; unknown words are left out if the vocabulary has no word for them."""
        known = [self.index.get(word, self.unknown) for word in words]
        return known if self.unknown >= 0 else [number for number in known if number >= 0]


def build_vocabulary(counts: Mapping[str, int], size: int = 0) -> Vocabulary:
    """Return a vocabulary of `size` words (0: of all): three special ones, then the most frequent.

    Equally frequent words are in alphabetical order.
    """
    special = (UNKNOWN, BEGIN, END)
    if size and size <= len(special):
        raise DataError(f"a vocabulary has at least {len(special) + 1} words, of which 3 are special, not {size}")
    ranked = sorted((-count, word) for word, count in counts.items() if word not in special)
    words = [word for _, word in ranked[: size - len(special) if size else None]]
    return Vocabulary((*special, *words), unknown=0, begin=1, end=2)


def pack_words(words: Iterable[str]) -> NDArray[np.uint8]:
    """Return words, or names of users, as an array of bytes, which can be cached like other arrays.

    >>> unpack_words(pack_words(["the", "naïve"]))
    ('the', 'naïve')
    """
    words = list(words)
    if broken := next((word for word in words if "\n" in word), None):
        raise DataError(f"the name {broken!r} contains a line break: use another name")
    return np.frombuffer("\n".join(words).encode(), dtype=np.uint8)


def unpack_words(array: NDArray[np.uint8], most: int = 0) -> tuple[str, ...]:
    """Return the first `most` (0: all) words that `pack_words` has packed; the others are not decoded.

    >>> unpack_words(pack_words(["the", "naïve", "cat"]), 2)
    ('the', 'naïve')
    """
    ends = np.flatnonzero(array == ord("\n")) if most else array[:0]
    if most and len(ends) >= most:
        array = array[: ends[most - 1]]
    return tuple(array.tobytes().decode().split("\n")) if len(array) else ()
