"""Texts of users that lie on shelves: an index made once and kept, and a user's lines read when they are asked for."""

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
from nestling.data.shelves import Shelf
from nestling.data.text import Text, sentences
from nestling.data.vocabulary import Vocabulary, built, packed, unpacked
from nestling.data.wanted import Wanted
from nestling.errors import DataError
from nestling.seeds import numpy_stream

_TEST = 5  # where nothing is set apart for testing, every fifth line of a user is: its last ones


def by_user(
    name: str,
    paths: tuple[Path, ...],
    shelves: Mapping[str, Shelf],
    wanted: Wanted,
    counts: Callable[[], Mapping[str, int]] | None = None,
) -> Text:
    """Open a text whose users lie on shelves.

    Parameters
    ----------
    name, paths
        What it is called, and its files: when these change, its index is made anew.
    shelves
        The shelves of ``train`` and, where they are set apart, of ``test`` and ``validation``.
    wanted
        How it is to be read.
    counts
        Tells how often every word occurs, where a file, one of `paths`, says it; else all lines are read once.
    """
    arrays = decoded(name, paths, partial(_index, shelves, counts))
    words = unpacked(arrays["words"], wanted.vocabulary)  # the most frequent come first
    vocabulary = built(dict(zip(words, arrays["counts"][: len(words)].tolist(), strict=True)), wanted.vocabulary)
    alone = "test" not in shelves
    sizes = arrays["sizes"] - arrays["sizes"] // _TEST if alone else arrays["sizes"]

    def users(shelf: str, part: str) -> Sequence[Tensor]:
        names = unpacked(arrays[shelf])
        return Lazy(len(names), _Reader(shelves[shelf], names, vocabulary, wanted, part))

    test = users("train", "test") if alone else users("test", "all")
    return Text(
        name,
        wanted.task,
        vocabulary,
        wanted.length,
        users=users("train", "train" if alone else "all"),
        sizes=sizes,
        test=_in_any_order(test),
        validation=_in_any_order(users("validation", "all")) if "validation" in shelves else (),
        padded=True,
    )


def _index(
    shelves: Mapping[str, Shelf], counts: Callable[[], Mapping[str, int]] | None, paths: tuple[Path, ...]
) -> Arrays:
    names = {part: shelf.names() for part, shelf in shelves.items()}
    if not names["train"]:
        raise DataError(f"there are no users to train on in {str(paths[0])!r}")
    told = counts() if counts else None
    sizes = None if told is None else shelves["train"].sizes()
    found = Counter[str]()
    if sizes is None:
        sizes = []
        for name in names["train"]:
            lines = [line.split() for line in shelves["train"].lines(name)]
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

    shelf: Shelf
    names: tuple[str, ...]
    vocabulary: Vocabulary
    wanted: Wanted
    part: str

    def __call__(self, user: int) -> Tensor:
        lines = [words for line in self.shelf.lines(self.names[user]) if (words := line.split())]
        kept = len(lines) - len(lines) // _TEST
        lines = {"all": lines, "train": lines[:kept], "test": lines[kept:]}[self.part]
        return sentences(lines, self.vocabulary, self.wanted.task, self.wanted.length)


def _in_any_order(users: Sequence[Tensor]) -> Sequence[Tensor]:
    """Users in an order that has nothing to do with their names: the first of them stand for all."""
    order = torch.from_numpy(numpy_stream(0, "test", "order").permutation(len(users)))
    return Lazy(len(users), partial(_at, users, order))


def _at(users: Sequence[Tensor], order: Tensor, place: int) -> Tensor:
    return users[int(order[place])]
