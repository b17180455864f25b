"""WikiText-2 (Merity et al. 2016), word level: 2,088,628 training words and the published vocabulary of 33,278 words.

A line ends with the word ``<eos>``; rare words are ``<unk>`` in the files. Words are numbered by frequency.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import torch

from nestling.data.archive import contents
from nestling.data.cache import Arrays, cached_arrays
from nestling.data.text.corpus import Text, TextOptions, windows
from nestling.data.text.vocabulary import END, Vocabulary, pack_words, unpack_words
from nestling.errors import DataError

LAYOUTS = (("wikitext-2.zip",), ("wikitext-2-v1.zip",), ("wikitext-2",))
_PARTS = {"train": "train", "valid": "validation", "test": "test"}
_UNKNOWN = "<unk>"


def open_text(paths: tuple[Path, ...], options: TextOptions) -> Text:
    """Open WikiText-2; with a smaller vocabulary than its own, more of the rare words are unknown."""
    arrays = cached_arrays("wikitext2", paths, read)
    words = unpack_words(arrays["words"])
    if options.vocabulary > len(words):
        raise DataError(f"wikitext2 has {len(words):,} words: data.vocabulary_size cannot be {options.vocabulary:,}")
    words = words[: options.vocabulary or None]
    for needed in (_UNKNOWN, END):
        if needed not in words:
            raise DataError(f"data.vocabulary_size={len(words)} leaves out {needed!r}: use a larger one")
    vocabulary = Vocabulary(words, unknown=words.index(_UNKNOWN), end=words.index(END))
    streams = {}
    for part in _PARTS.values():
        stream = torch.from_numpy(arrays[part])
        streams[part] = torch.where(stream < len(words), stream, vocabulary.unknown) if options.vocabulary else stream
    test, validation = (windows(streams[part], options.task, options.length) for part in ("test", "validation"))
    return Text(
        "wikitext2",
        options.task,
        vocabulary,
        options.length,
        stream=streams["train"],
        test=[test],
        validation=[validation],
    )


def read(paths: tuple[Path, ...]) -> Arrays:
    """Read the three parts as word numbers, and the words, the most frequent first."""
    files = {}
    for name, data in contents(paths[0], lambda name: name.endswith((".txt", ".tokens"))):
        part = name.rpartition("/")[2].removeprefix("wiki.").partition(".")[0]
        if part in _PARTS:
            files[_PARTS[part]] = data.decode("utf-8")
    if missing := [part for part in _PARTS.values() if part not in files]:
        raise DataError(f"{str(paths[0])!r} does not hold the part {missing[0]!r} of WikiText-2")
    texts = {
        part: [word for line in text.splitlines() for word in (*line.split(), END)] for part, text in files.items()
    }
    counts = Counter(texts["train"])
    for part in ("validation", "test"):
        counts.update(dict.fromkeys(set(texts[part]) - counts.keys(), 0))
    words = sorted(counts, key=lambda word: (-counts[word], word))
    index = {word: number for number, word in enumerate(words)}
    arrays = {part: np.array([index[word] for word in text], dtype=np.int32) for part, text in texts.items()}
    return {**arrays, "words": pack_words(words)}
