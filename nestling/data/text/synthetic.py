"""Synthetic sentences by any number of users, drawn from a Markov chain: for tests and benchmarks.

Every word has eight successors. Seven of them are of its own topic, so that a user, who writes on one topic, holds a
part of the vocabulary only; the eighth is a word that everyone uses. A user's sentences are generated on access.
"""

from __future__ import annotations

from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nestling.data.lazy import Lazy
from nestling.data.text.corpus import Text, TextOptions, padding_of, width_of
from nestling.data.text.vocabulary import build_vocabulary
from nestling.errors import DataError
from nestling.seeds import numpy_stream

USERS = 342_477  # as many as in Stack Overflow
_TOPICS = 16
_COMMON = 32  # words that everyone uses
_SUCCESSORS = 8
_LIKELY = 0.5 ** np.arange(1, _SUCCESSORS + 1) / (1 - 0.5**_SUCCESSORS)  # each half as likely as the one before


def open_text(_paths: tuple[Path, ...], options: TextOptions) -> Text:
    """Generate the text; it depends on the options alone, and nothing is read."""
    return text_by(USERS, options)


def text_by(users: int, options: TextOptions) -> Text:
    """Return a text by so many users, of whom nothing is stored.

    >>> text_by(10**7, TextOptions("next-word", 1000, 8)).users[9_999_999].shape[1]
    9
    """
    least = 3 + _COMMON + _TOPICS * _SUCCESSORS
    if options.vocabulary < least:
        raise DataError(f"words needs data.vocabulary_size of at least {least}, not {options.vocabulary}")
    vocabulary = build_vocabulary({f"w{number}": 1 for number in range(options.vocabulary - 3)})
    make = partial(_sentences, len(vocabulary), options.task, options.length)
    return Text(
        "words",
        options.task,
        vocabulary,
        options.length,
        users=Lazy(users, partial(make, "train")),
        test=Lazy(users, partial(make, "test")),
        validation=Lazy(users, partial(make, "validation")),
        padded=True,
    )


@lru_cache(maxsize=4)
def _chain(words: int) -> NDArray[Any]:
    """Return the successors of every word, (words, 8), the likeliest first; the same for all users."""
    random = numpy_stream(0, "words", "chain", words)
    first = 3 + _COMMON
    per_topic = (words - first) // _TOPICS
    topic = np.minimum((np.arange(words) - first) // per_topic, _TOPICS - 1)
    topic[:first] = random.integers(_TOPICS, size=first)
    table = first + topic[:, None] * per_topic + random.integers(per_topic, size=(words, _SUCCESSORS))
    table[:, 2] = random.integers(3, first, size=words)
    return table


def _sentences(words: int, task: str, length: int, part: str, user: int) -> Tensor:
    """Generate 4 to 16 sentences of a user, of at least 4 words if `length` has room for them and an end mark."""
    random = numpy_stream(0, "words", part, user)
    table, first = _chain(words), 3 + _COMMON
    per_topic = (words - first) // _TOPICS
    count = int(random.integers(4, 17))
    begin, end, padding = 1, 2, padding_of(task, words)
    lengths = random.integers(min(4, length - 1), length, size=count)
    rows = np.full((count, width_of(task, length)), padding, dtype=np.int32)
    start = int(task == "next-word")
    rows[:, :start] = begin
    state = first + user % _TOPICS * per_topic + random.integers(per_topic, size=count)
    choices = random.choice(_SUCCESSORS, p=_LIKELY, size=(length, count))
    for position in range(start, rows.shape[1]):
        word = position - start
        rows[:, position] = np.where(word < lengths, state, np.where(word == lengths, end, padding))
        if word < length:
            # from a word that everyone uses, go back to the user's own topic
            follows = table[state, choices[word]]
            own = first + user % _TOPICS * per_topic + (follows - first) % per_topic
            state = np.where(state < first, own, follows)
    return torch.from_numpy(rows)
