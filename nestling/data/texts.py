"""Every text by name: where it comes from, and how it is read where nothing else is asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from nestling.data.places import Layout, find
from nestling.data.readers import shakespeare, stackoverflow, wikitext
from nestling.data.sources import DATASETS, Download, Source
from nestling.data.text import synthetic
from nestling.data.text.corpus import Task, Text
from nestling.data.text.options import TextOptions
from nestling.errors import DataError, nearest


@dataclass(frozen=True)
class TextSource:
    """One text: what it is, how it is opened, in which forms its files come, and how it is usually read.

    ``vocabulary`` is how many words are known (0: all there are), ``length`` how many make a sequence; ``layouts``,
    ``inside`` and ``downloads`` are as in `Source`.
    """

    about: str
    open: Callable[[tuple[Path, ...], TextOptions], Text]
    task: Task
    vocabulary: int
    length: int
    layouts: Sequence[Layout] = ()
    inside: tuple[str, ...] = ("",)
    downloads: tuple[Download, ...] = ()


_TFF = "https://storage.googleapis.com/tff-datasets-public/"
_TINY = (Download("https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"),)

TEXTS: dict[str, TextSource] = {
    "words": TextSource(
        "Made-up sentences of 342,477 users, each on a topic; needs no files.",
        synthetic.open_text,
        "next-word",
        1000,
        20,
    ),
    "wikitext2": TextSource(
        "Wikipedia articles, word level: 2,088,628 words to train on, 33,278 different ones.",
        wikitext.open_text,
        "masked-word",
        0,
        64,
        wikitext.LAYOUTS,
        ("wikitext2", ""),
        (Download("https://wikitext.smerity.com/wikitext-2-v1.zip"),),
    ),
    "shakespeare": TextSource(
        "Plays by 299 speakers, character by character.",
        shakespeare.open_characters,
        "next-word",
        0,
        80,
        shakespeare.LAYOUTS,
        ("shakespeare", ""),
        _TINY,
    ),
    "shakespeare-words": TextSource(
        "Plays by 299 speakers, word by word.",
        shakespeare.open_words,
        "next-word",
        10_000,
        20,
        shakespeare.LAYOUTS,
        ("shakespeare", ""),
        _TINY,
    ),
    "stackoverflow": TextSource(
        "Questions and answers of 342,477 users, sentence by sentence.",
        stackoverflow.open_text,
        "next-word",
        10_000,
        20,
        stackoverflow.LAYOUTS,
        ("stackoverflow",),
        (Download(f"{_TFF}stackoverflow.sqlite.lzma"), Download(f"{_TFF}stackoverflow.word_count.tar.bz2")),
    ),
    "text-files": TextSource(
        "Your own: folders train and test (or train alone) of .txt files, one a user, a sentence a line.",
        stackoverflow.open_own,
        "next-word",
        10_000,
        20,
        stackoverflow.OWN_LAYOUTS,
        ("text-files", ""),
    ),
}


def entry(name: str) -> Source | TextSource:
    """Return the entry called `name`, of a dataset or of a text.

    >>> entry("wikitext-2")
    Traceback (most recent call last):
    nestling.errors.DataError: there is no dataset 'wikitext-2'; did you mean 'wikitext2' or ...
    """
    known: dict[str, Source | TextSource] = {**DATASETS, **TEXTS}
    if name not in known:
        raise DataError(f"there is no dataset {name!r}{nearest(name.lower().replace('_', '-'), known)}")
    return known[name]


def load_text(
    name: str,
    data_dir: str | Path | None = None,
    *,
    task: Task | None = None,
    vocabulary: int = 0,
    length: int = 0,
) -> Text:
    """Open the text called `name`: what takes long is done once and kept, and users are read when they are asked for.

    Parameters
    ----------
    name
        A name from ``nestling list datasets``.
    data_dir
        Where its files lie, as in `load`.
    task
        ``"masked-word"`` or ``"next-word"``; by default what the papers do with it.
    vocabulary, length
        How many words are known, and how many make a sequence; 0 for what the papers take.

    Examples
    --------
    >>> text = load_text("words")
    >>> len(text.users), text.users[342_476].shape[1], text.classes
    (342477, 21, 1000)
    """
    found = entry(name)
    if isinstance(found, Source):
        raise DataError(f"{name} holds no text: load it with nestling.data.load")
    for what, value in (("vocabulary", vocabulary), ("length", length)):
        if value < 0:
            raise DataError(f"the {what} of a text must be 0 or more, not {value}")
    options = TextOptions(task or found.task, vocabulary or found.vocabulary, length or found.length)
    paths = find(name, found.layouts, found.inside, data_dir, own=not found.downloads) if found.layouts else ()
    return found.open(paths, options)
