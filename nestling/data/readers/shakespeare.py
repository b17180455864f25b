"""Shakespeare by speaker: who says what in 40,000 lines of the plays, as characters or as words.

The file is Karpathy's tiny Shakespeare: a speaker's name and a colon, what is said, an empty line. The last fifth of
what a speaker says is for testing (LEAF's split).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from nestling.data.archive import contents
from nestling.data.decoded import careful
from nestling.data.text.corpus import Text, windows
from nestling.data.text.options import TextOptions
from nestling.data.text.vocabulary import UNKNOWN, Vocabulary, built
from nestling.errors import DataError

LAYOUTS = (("shakespeare.zip",), ("tinyshakespeare_input.txt",), ("input.txt",))
_NAMES = ("tinyshakespeare_input.txt", "input.txt")
_TEST = 5  # one of so many parts


def open_characters(paths: tuple[Path, ...], options: TextOptions) -> Text:
    """Open it as characters."""
    if options.vocabulary == 1:
        raise DataError("a vocabulary has at least 2 signs, of which 1 stands for all others, not 1")
    said = {speaker: list(text) for speaker, text in careful("shakespeare", paths, speeches).items()}
    train = Counter(sign for signs in said.values() for sign in _split(signs)[0])
    ranked = sorted(train, key=lambda sign: (-train[sign], sign))
    vocabulary = Vocabulary((UNKNOWN, *ranked[: options.vocabulary - 1 if options.vocabulary else None]), unknown=0)
    return _text("shakespeare", said, vocabulary, options)


def open_words(paths: tuple[Path, ...], options: TextOptions) -> Text:
    """Open it as words; marks are words, and all letters small."""
    said = careful("shakespeare", paths, speeches)
    found = {speaker: re.findall(r"\w+(?:'\w+)*|[^\w\s]", text.lower()) for speaker, text in said.items()}
    counts = Counter(word for words in found.values() for word in _split(words)[0])
    return _text("shakespeare-words", found, built(counts, options.vocabulary), options)


def speeches(paths: tuple[Path, ...]) -> dict[str, str]:
    """Return what every speaker says, in the order in which they first speak."""
    path = paths[0]
    data = path.read_bytes() if path.suffix == ".txt" else next(_texts(path), b"")
    text = data.decode("utf-8").replace("\r\n", "\n")
    said: dict[str, list[str]] = {}
    for speech in text.split("\n\n"):
        speaker, colon, words = speech.strip("\n").partition(":\n")
        if colon:
            said.setdefault(speaker, []).append(words)
    if not said:
        raise DataError(f"{str(path)!r} holds no speeches: a name and a colon, and what is said on the lines below")
    return {speaker: "\n".join(parts) for speaker, parts in said.items()}


def _texts(path: Path) -> Iterator[bytes]:
    return (data for _, data in contents(path, lambda name: name.rpartition("/")[2] in _NAMES))


def _split(signs: list[str]) -> tuple[list[str], list[str]]:
    kept = len(signs) - len(signs) // _TEST
    return signs[:kept], signs[kept:]


def _text(name: str, said: dict[str, list[str]], vocabulary: Vocabulary, options: TextOptions) -> Text:
    train: list[Tensor] = []
    test: list[Tensor] = []
    for signs in said.values():
        for part, made in zip(_split(signs), (train, test), strict=True):
            ids = torch.tensor(vocabulary.ids(part), dtype=torch.int32)
            made.append(windows(ids, options.task, options.length))
    sizes = np.array([len(sequences) for sequences in train])
    return Text(name, options.task, vocabulary, options.length, users=train, sizes=sizes, test=test)
