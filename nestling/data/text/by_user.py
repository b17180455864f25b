"""Texts by user: an index that is made once and cached, and a user's lines, read when they are asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from nestling.data.decoded import Arrays, decoded
from nestling.data.lazy import Lazy
from nestling.data.readers.user_store import LineSource
from nestling.data.text.corpus import Text, sentences
from nestling.data.text.options import TextOptions
from nestling.data.text.vocabulary import Vocabulary, built, packed, unpacked
from nestling.errors import DataError
from nestling.seeds import numpy_stream

_TEST = 5  # where nothing is set apart for testing, every fifth line of a user is: its last ones


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
        What it is called, and its files: when these change, its index is made anew.
    sources
        The lines of ``train`` and, where they are set apart, of ``test`` and ``validation``.
    options
        How it is to be read.
    counts
        Tells how often every word occurs, where a file, one of `paths`, says it; else all lines are read once.
    """
    arrays = decoded(name, paths, partial(_index, sources, counts))
    words = unpacked(arrays["words"], options.vocabulary)  # the most frequent come first
    vocabulary = built(dict(zip(words, arrays["counts"][: len(words)].tolist(), strict=True)), options.vocabulary)
    alone = "test" not in sources
    sizes = arrays["sizes"] - arrays["sizes"] // _TEST if alone else arrays["sizes"]

    def users(source: str, part: str) -> Sequence[Tensor]:
        names = unpacked(arrays[source])
        return Lazy(len(names), _Reader(sources[source], names, vocabulary, options, part))

    test = users("train", "test") if alone else users("test", "all")
    return Text(
        name,
        options.task,
        vocabulary,
        options.length,
        users=users("train", "train" if alone else "all"),
        sizes=sizes,
        test=_in_any_order(test),
        validation=_in_any_order(users("validation", "all")) if "validation" in sources else (),
        padded=True,
    )


def _index(
    sources: Mapping[str, LineSource], counts: Callable[[], Mapping[str, int]] | None, paths: tuple[Path, ...]
) -> Arrays:
    names = {part: source.names() for part, source in sources.items()}
    if not names["train"]:
        raise DataError(f"there are no users to train on in {str(paths[0])!r}")
    told = counts() if counts else None
    sizes = None if told is None else sources["train"].sizes()
    found = Counter[str]()
    if sizes is None:
        sizes = []
        for name in names["train"]:
            lines = [line.split() for line in sources["train"].lines(name)]
            sizes.append(sum(map(bool, lines)))
            for line in lines:
                found.update(line)
    counted = found if told is None else told
    ranked = sorted(counted, key=lambda word: (-counted[word], word))
    return {
        "sizes": np.array(sizes, dtype=np.int32),
        "words": packed(ranked),
        "counts": np.array([counted[word] for word in ranked], dtype=np.int64),
        **{part: packed(listed) for part, listed in names.items()},
    }


@dataclass(frozen=True, eq=False)
class _Reader:
    """Reads one user: all lines, or those to train or to test on."""

    source: LineSource
    names: tuple[str, ...]
    vocabulary: Vocabulary
    options: TextOptions
    part: str

    def __call__(self, user: int) -> Tensor:
        lines = [words for line in self.source.lines(self.names[user]) if (words := line.split())]
        kept = len(lines) - len(lines) // _TEST
        lines = {"all": lines, "train": lines[:kept], "test": lines[kept:]}[self.part]
        return sentences(lines, self.vocabulary, self.options.task, self.options.length)


def _in_any_order(users: Sequence[Tensor]) -> Sequence[Tensor]:
    """Users in an order that has nothing to do with their names: the first of them stand for all."""
    order = torch.from_numpy(numpy_stream(0, "test", "order").permutation(len(users)))
    return Lazy(len(users), partial(_at, users, order))


def _at(users: Sequence[Tensor], order: Tensor, place: int) -> Tensor:
    return users[int(order[place])]
