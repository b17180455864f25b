"""Texts by user: an index that is computed once and cached, and the lines of users, read on access."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from torch import Tensor

from nestling.data.cache import Arrays, cached_arrays
from nestling.data.lazy import Lazy
from nestling.data.readers.user_store import LineSource
from nestling.data.text.corpus import Text, TextOptions, sentences
from nestling.data.text.vocabulary import Vocabulary, build_vocabulary, pack_words, unpack_words
from nestling.errors import DataError
from nestling.seeds import numpy_stream

_TEST_DIVISOR = 5  # without a separate test set, the last fifth of a user's lines is used for testing


def by_user(
    name: str,
    paths: tuple[Path, ...],
    sources: Mapping[str, LineSource],
    options: TextOptions,
    counts: Callable[[], Mapping[str, int]] | None = None,
) -> Text:
    """Open a text of many users.

    Parameters
    ----------
    name, paths
        Its name and its files; the index is recomputed when the files change.
    sources
        The lines of ``train`` and, if they are separate, of ``test`` and ``validation``.
    options
        The task, the size of the vocabulary and the length of sequences.
    counts
        Returns the counts of words from one of the files in `paths`; without it, all lines are read once.
    """
    arrays = cached_arrays(name, paths, partial(_index, sources, counts))
    words = unpack_words(arrays["words"], options.vocabulary)  # the most frequent come first
    word_counts = dict(zip(words, arrays["counts"][: len(words)].tolist(), strict=True))
    vocabulary = build_vocabulary(word_counts, options.vocabulary)
    split = "test" not in sources
    sizes = arrays["sizes"] - arrays["sizes"] // _TEST_DIVISOR if split else arrays["sizes"]

    def users(source: str, part: str, shuffle: bool = True) -> Sequence[Tensor]:
        names = unpack_words(arrays[source])
        if shuffle:  # in a fixed order, so that the first users are a random sample
            names = tuple(names[k] for k in numpy_stream(0, "test", "order").permutation(len(names)))
        return Lazy(len(names), _Reader(sources[source], names, vocabulary, options, part))

    return Text(
        name,
        options.task,
        vocabulary,
        options.length,
        users=users("train", "train" if split else "all", shuffle=False),
        sizes=sizes,
        test=users("train", "test") if split else users("test", "all"),
        validation=users("validation", "all") if "validation" in sources else (),
        padded=True,
    )


def _index(
    sources: Mapping[str, LineSource], counts: Callable[[], Mapping[str, int]] | None, paths: tuple[Path, ...]
) -> Arrays:
    names = {part: source.names() for part, source in sources.items()}
    if not names["train"]:
        raise DataError(f"there are no users to train on in {str(paths[0])!r}")
    published = counts() if counts else None
    sizes = None if published is None else sources["train"].sizes()
    counter = Counter[str]()
    if sizes is None:
        sizes = []
        for name in names["train"]:
            lines = [line.split() for line in sources["train"].lines(name)]
            sizes.append(sum(map(bool, lines)))
            for line in lines:
                counter.update(line)
    word_counts = counter if published is None else published
    ranked = sorted(word_counts, key=lambda word: (-word_counts[word], word))
    return {
        "sizes": np.array(sizes, dtype=np.int32),
        "words": pack_words(ranked),
        "counts": np.array([word_counts[word] for word in ranked], dtype=np.int64),
        **{part: pack_words(users) for part, users in names.items()},
    }


@dataclass(frozen=True, eq=False)
class _Reader:
    """Reads all lines of one user, or only the training or test lines."""

    source: LineSource
    names: tuple[str, ...]
    vocabulary: Vocabulary
    options: TextOptions
    part: str

    def __call__(self, user: int) -> Tensor:
        lines = [words for line in self.source.lines(self.names[user]) if (words := line.split())]
        first_test = len(lines) - len(lines) // _TEST_DIVISOR
        lines = {"all": lines, "train": lines[:first_test], "test": lines[first_test:]}[self.part]
        return sentences(lines, self.vocabulary, self.options.task, self.options.length)
