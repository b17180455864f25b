"""Shakespeare by speaker: 40,000 lines of the plays, as characters or as words.

The file is Karpathy's tiny Shakespeare: a speaker's name and a colon, the speech, an empty line. The last fifth of each
speaker's text is the test set (LEAF's split).
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from nestling.data.archive import contents, file_name
from nestling.data.cache import read_checked
from nestling.data.text.corpus import Text, TextOptions, windows
from nestling.data.text.vocabulary import UNKNOWN, Vocabulary, build_vocabulary
from nestling.errors import DataError

LAYOUTS = (("shakespeare.zip",), ("tinyshakespeare_input.txt",), ("input.txt",))
_NAMES = ("tinyshakespeare_input.txt", "input.txt")
_TEST_DIVISOR = 5  # the last fifth is the test set


def open_characters(paths: tuple[Path, ...], options: TextOptions) -> Text:
    """Open the plays as characters."""
    if options.vocabulary == 1:
        raise DataError("a vocabulary has at least 2 characters, of which 1 stands for all others, not 1")
    lines = {speaker: list(text) for speaker, text in read_checked("shakespeare", paths, speeches).items()}
    counts = Counter(character for line in lines.values() for character in _split(line)[0])
    ranked = sorted(counts, key=lambda character: (-counts[character], character))
    vocabulary = Vocabulary((UNKNOWN, *ranked[: options.vocabulary - 1 if options.vocabulary else None]), unknown=0)
    return _text("shakespeare", lines, vocabulary, options)


def open_words(paths: tuple[Path, ...], options: TextOptions) -> Text:
    """Open the plays as lower-case words; punctuation marks are words, too."""
    texts = read_checked("shakespeare", paths, speeches)
    lines = {speaker: re.findall(r"\w+(?:'\w+)*|[^\w\s]", text.lower()) for speaker, text in texts.items()}
    counts = Counter(word for words in lines.values() for word in _split(words)[0])
    return _text("shakespeare-words", lines, build_vocabulary(counts, options.vocabulary), options)


def speeches(paths: tuple[Path, ...]) -> dict[str, str]:
    """Return the text of every speaker, in the order in which they first speak."""
    path = paths[0]
    if path.suffix == ".txt":
        data = path.read_bytes()
    else:
        data = next((data for _, data in contents(path, lambda name: file_name(name) in _NAMES)), b"")
    text = data.decode("utf-8").replace("\r\n", "\n")
    parts: dict[str, list[str]] = {}
    for speech in text.split("\n\n"):
        speaker, colon, words = speech.strip("\n").partition(":\n")
        if colon:
            parts.setdefault(speaker, []).append(words)
    if not parts:
        raise DataError(f"{str(path)!r} holds no speeches: a name and a colon on a line, and the speech below it")
    return {speaker: "\n".join(spoken) for speaker, spoken in parts.items()}


def _split(tokens: list[str]) -> tuple[list[str], list[str]]:
    """Split the characters, or words, of a speaker into those for training and those for testing."""
    first_test = len(tokens) - len(tokens) // _TEST_DIVISOR
    return tokens[:first_test], tokens[first_test:]


def _text(name: str, lines: dict[str, list[str]], vocabulary: Vocabulary, options: TextOptions) -> Text:
    train: list[Tensor] = []
    test: list[Tensor] = []
    for tokens in lines.values():
        for part, sequences in zip(_split(tokens), (train, test), strict=True):
            ids = torch.tensor(vocabulary.ids(part), dtype=torch.int32)
            sequences.append(windows(ids, options.task, options.length))
    sizes = np.array([len(sequences) for sequences in train])
    return Text(name, options.task, vocabulary, options.length, users=train, sizes=sizes, test=test)
