"""Shakespeare by speaker: who says what in 40,000 lines of the plays, as characters or as words.

The file is Karpathy's tiny Shakespeare: a speaker's name and a colon, what is said, an empty line. The last fifth of
what a speaker says is for testing (LEAF's split).
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from nestling.data.archive import contents
from nestling.data.text import Text, windows
from nestling.data.vocabulary import UNKNOWN, Vocabulary, built
from nestling.data.wanted import Wanted
from nestling.errors import DataError

LAYOUTS = (("shakespeare.zip",), ("tinyshakespeare_input.txt",), ("input.txt",))
_NAMES = ("tinyshakespeare_input.txt", "input.txt")
_TEST = 5  # one of so many parts


def open_characters(paths: tuple[Path, ...], wanted: Wanted) -> Text:
    """Open it as characters."""
    said = {speaker: list(text) for speaker, text in speeches(paths[0]).items()}
    train = Counter(sign for signs in said.values() for sign in _split(signs)[0])
    ranked = sorted(train, key=lambda sign: (-train[sign], sign))
    vocabulary = Vocabulary((UNKNOWN, *ranked[: wanted.vocabulary - 1 if wanted.vocabulary else None]), unknown=0)
    return _text("shakespeare", said, vocabulary, wanted)


def open_words(paths: tuple[Path, ...], wanted: Wanted) -> Text:
    """Open it as words; marks are words, and all letters small."""
    found = {speaker: re.findall(r"\w+(?:'\w+)*|[^\w\s]", text.lower()) for speaker, text in speeches(paths[0]).items()}
    counts = Counter(word for words in found.values() for word in _split(words)[0])
    return _text("shakespeare-words", found, built(counts, wanted.vocabulary), wanted)


def speeches(path: Path) -> dict[str, str]:
    """Return what every speaker says, in the order in which they first speak."""
    if path.suffix == ".txt":
        text = path.read_text(encoding="utf-8")
    else:
        found = [data for _, data in contents(path, lambda name: name.rpartition("/")[2] in _NAMES)]
        if not found:
            raise DataError(f"{str(path)!r} does not hold {_NAMES[0]!r}")
        text = found[0].decode("utf-8")
    said: dict[str, list[str]] = {}
    for speech in text.split("\n\n"):
        speaker, colon, words = speech.strip("\n").partition(":\n")
        if colon:
            said.setdefault(speaker, []).append(words)
    return {speaker: "\n".join(parts) for speaker, parts in said.items()}


def _split(signs: list[str]) -> tuple[list[str], list[str]]:
    kept = len(signs) - len(signs) // _TEST
    return signs[:kept], signs[kept:]


def _text(name: str, said: dict[str, list[str]], vocabulary: Vocabulary, wanted: Wanted) -> Text:
    train: list[Tensor] = []
    test: list[Tensor] = []
    for signs in said.values():
        for part, made in zip(_split(signs), (train, test), strict=True):
            ids = torch.tensor(vocabulary.ids(part), dtype=torch.int32)
            made.append(windows(ids, wanted.task, wanted.length))
    sizes = np.array([len(sequences) for sequences in train])
    return Text(name, wanted.task, vocabulary, wanted.length, users=train, sizes=sizes, test=test)
