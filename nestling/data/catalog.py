"""Every dataset and text by name: where it comes from, how it is read and how images are normalised.

Checksums are those of the publishers (or torchvision). A file without a published checksum is trusted when it is first
downloaded; its SHA-256 is recorded, so that later downloads must be the same file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from nestling.data.cache import Layout, Reader, cached_arrays, find
from nestling.data.dataset import Dataset
from nestling.data.readers import cifar, cinic, digits, har, idx, shakespeare, stackoverflow, svhn, wikitext
from nestling.data.text import synthetic
from nestling.data.text.corpus import Task, Text, TextOptions
from nestling.errors import DataError, nearest


@dataclass(frozen=True)
class Download:
    """A file to download: ``checksum`` is "md5:…" or "sha256:…", or empty if none is published."""

    url: str
    checksum: str = ""

    @property
    def file(self) -> str:
        """The file name in the download folder."""
        return self.url.rpartition("/")[2].replace("%20", " ")


@dataclass(frozen=True)
class Source:
    """One dataset: a description, its files, their reader, and how images are normalised.

    ``layouts`` are the forms its files come in, the preferred one first; empty for a dataset that needs no files.
    ``inside`` are the folders to search (downloads go to the first one; "" is the data directory itself).
    """

    about: str
    classes: int
    read: Reader
    layouts: Sequence[Layout] = ()
    inside: tuple[str, ...] = ("",)
    downloads: tuple[Download, ...] = ()
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    augment: str = "none"


@dataclass(frozen=True)
class TextSource:
    """One text: a description, the function that opens it, its files as in `Source`, and the papers' options.

    ``vocabulary`` is the number of known words (0: all of them), ``length`` the number of words in a sequence.
    """

    about: str
    open: Callable[[tuple[Path, ...], TextOptions], Text]
    task: Task
    vocabulary: int
    length: int
    layouts: Sequence[Layout] = ()
    inside: tuple[str, ...] = ("",)
    downloads: tuple[Download, ...] = ()


def _idx(about: str, *, inside: tuple[str, ...], url: str, md5: Sequence[str], mean: float, std: float) -> Source:
    packed = tuple(f"{file}.gz" for file in idx.files())
    downloads = tuple(Download(url + file, f"md5:{digest}") for file, digest in zip(packed, md5, strict=True))
    # MNIST and Fashion-MNIST use the same file names, so each is searched for only in folders of its own.
    return Source(about, 10, idx.read, (packed, idx.files()), inside, downloads, (mean,), (std,))


def _emnist(split: str, classes: int, about: str) -> Source:
    files = idx.files(f"emnist-{split}-", test="test")
    return Source(
        f"EMNIST {split}: {about}.",
        classes,
        partial(idx.read, names=files, transposed=True, first_label=int(split == "letters")),
        (tuple(f"{file}.gz" for file in files), files, ("gzip.zip",), ("emnist.zip",)),
        ("emnist", "EMNIST/raw", ""),
        (Download("https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip", "md5:58c8d27c78d21e728a6bc7b3cc06412e"),),
        (0.1736,),  # of the split byclass, which holds all images
        (0.3317,),
    )


def _cinic(about: str, training: tuple[str, ...]) -> Source:
    return Source(
        about,
        10,
        partial(cinic.read, training=training),
        cinic.LAYOUTS,
        ("cinic10", ""),
        (
            Download(
                "https://datashare.ed.ac.uk/bitstream/handle/10283/3192/CINIC-10.tar.gz",
                "md5:6ee4d0c996905fe93221de577967a372",
            ),
        ),
        (0.47889522, 0.47227842, 0.43047404),
        (0.24205776, 0.23828046, 0.25874835),
        "crop-flip",
    )


_TORONTO = "https://www.cs.toronto.edu/~kriz/"
_STANFORD = "http://ufldl.stanford.edu/housenumbers/"

DATASETS: dict[str, Source] = {
    "digits": Source("Handwritten digits of 8×8 pixels, part of scikit-learn: 1,438 and 359.", 10, digits.read),
    "mnist": _idx(
        "Handwritten digits: 60,000 and 10,000.",
        inside=("mnist", "MNIST/raw"),
        url="https://ossci-datasets.s3.amazonaws.com/mnist/",
        md5=(
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
        mean=0.1307,
        std=0.3081,
    ),
    "fashion-mnist": _idx(
        "Pieces of clothing: 60,000 and 10,000.",
        inside=("fashion-mnist", "FashionMNIST/raw", "dataset-fashion-mnist"),
        url="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        md5=(
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
        mean=0.2860,
        std=0.3530,
    ),
    "emnist": _emnist("balanced", 47, "letters and digits, look-alikes joined, 112,800 and 18,800"),
    "emnist-byclass": _emnist("byclass", 62, "letters and digits, 697,932 and 116,323"),
    "emnist-bymerge": _emnist("bymerge", 47, "letters and digits, look-alikes joined, 697,932 and 116,323"),
    "emnist-letters": _emnist("letters", 26, "letters, 124,800 and 20,800"),
    "emnist-digits": _emnist("digits", 10, "digits, 240,000 and 40,000"),
    "cifar10": Source(
        "Photos of ten things: 50,000 and 10,000.",
        10,
        partial(cifar.read, kind=cifar.CIFAR10),
        cifar.layouts("cifar-10-batches-bin", "cifar-10-binary", "cifar-10-batches-py", "cifar-10-python"),
        ("cifar10", ""),
        (Download(f"{_TORONTO}cifar-10-binary.tar.gz", "md5:c32a1d4ab5d03f1284b67883e8d87530"),),
        (0.4914, 0.4822, 0.4465),  # as HeteroFL has them
        (0.2023, 0.1994, 0.2010),
        "crop-flip",
    ),
    "cifar100": Source(
        "Photos of a hundred things: 50,000 and 10,000.",
        100,
        partial(cifar.read, kind=cifar.CIFAR100),
        cifar.layouts("cifar-100-binary", "cifar-100-python"),
        ("cifar100", ""),
        (Download(f"{_TORONTO}cifar-100-binary.tar.gz", "md5:03b5dce01913d631647c71ecec9e9cb8"),),
        (0.5071, 0.4865, 0.4409),
        (0.2673, 0.2564, 0.2762),
        "crop-flip",
    ),
    "svhn": Source(
        "House numbers, cropped digits: 73,257 and 26,032.",
        10,
        svhn.read,
        (svhn.FILES,),
        ("svhn", ""),
        (
            Download(f"{_STANFORD}train_32x32.mat", "md5:e26dedcc434d2e4c54c9b2d4a06d8373"),
            Download(f"{_STANFORD}test_32x32.mat", "md5:eb5a983be6a315427106f1b164d9cef3"),
        ),
        (0.4377, 0.4438, 0.4728),
        (0.1980, 0.2010, 0.1970),
    ),
    "cinic10": _cinic("CIFAR's ten things, from CIFAR and ImageNet: 90,000 and 90,000.", ("train",)),
    "cinic10-enlarged": _cinic("CINIC-10, training with its validation part: 180,000 and 90,000.", ("train", "valid")),
    "har": Source(
        "Activities of 30 people from their phones' motion; users are real: 21 and 9.",
        6,
        har.read,
        har.LAYOUTS,
        ("har", ""),
        (Download("https://archive.ics.uci.edu/ml/machine-learning-databases/00240/UCI%20HAR%20Dataset.zip"),),
    ),
}

_TFF = "https://storage.googleapis.com/tff-datasets-public/"
_TINY = (Download("https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"),)

TEXTS: dict[str, TextSource] = {
    "words": TextSource(
        "Synthetic sentences of 342,477 users, each on a topic; needs no files.",
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


def names() -> list[str]:
    """List the names that :func:`load` knows, in the order of the table.

    >>> names()[:3]
    ['digits', 'mnist', 'fashion-mnist']
    """
    return list(DATASETS)


def entry(name: str) -> Source | TextSource:
    """Return the catalog's entry of a dataset or a text.

    >>> entry("cifra10")
    Traceback (most recent call last):
    nestling.errors.DataError: there is no dataset 'cifra10'; did you mean 'cifar10' or 'cifar100' or 'cinic10'?
    """
    known: dict[str, Source | TextSource] = {**DATASETS, **TEXTS}
    if name not in known:
        raise DataError(f"there is no dataset {name!r}{nearest(name.lower().replace('_', '-'), known)}")
    return known[name]


def load(name: str, data_dir: str | Path | None = None) -> Dataset:
    """Load the dataset called `name`.

    Its files are searched for in `data_dir`, in the folder ``NESTLING_DATA``, and among the downloads of ``nestling
    data get``. The decoded arrays are cached in ``NESTLING_CACHE`` and memory-mapped from there the next time.

    >>> digits = load("digits")
    >>> digits.inputs.shape, digits.test_inputs.shape, digits.classes
    (torch.Size([1438, 1, 8, 8]), torch.Size([359, 1, 8, 8]), 10)
    """
    source = entry(name)
    if isinstance(source, TextSource):
        raise DataError(f"{name} is a text: load it with nestling.data.load_text")
    if source.layouts:
        arrays = cached_arrays(name, find(name, source.layouts, source.inside, data_dir), source.read)
    else:
        arrays = source.read(())
    tensors: dict[str, Any] = {key: torch.from_numpy(array) for key, array in arrays.items()}
    return Dataset(
        name=name, classes=source.classes, mean=source.mean, std=source.std, augment=source.augment, **tensors
    )


def load_text(
    name: str,
    data_dir: str | Path | None = None,
    *,
    task: Task | None = None,
    vocabulary: int = 0,
    length: int = 0,
) -> Text:
    """Open the text called `name`; its index is computed once and cached, and users are read on demand.

    Parameters
    ----------
    name
        A name from ``nestling list datasets``.
    data_dir
        The folder of its files, as in `load`.
    task
        ``"masked-word"`` or ``"next-word"``; by default the task of the papers.
    vocabulary, length
        The number of known words, and of words in a sequence; 0 for the papers' values.

    Examples
    --------
    >>> text = load_text("words")
    >>> len(text.users), text.users[342_476].shape[1], text.classes
    (342477, 21, 1000)
    """
    source = entry(name)
    if isinstance(source, Source):
        raise DataError(f"{name} holds no text: load it with nestling.data.load")
    for option, value in (("vocabulary", vocabulary), ("length", length)):
        if value < 0:
            raise DataError(f"the {option} of a text must be 0 or more, not {value}")
    options = TextOptions(task or source.task, vocabulary or source.vocabulary, length or source.length)
    paths = find(name, source.layouts, source.inside, data_dir, own=not source.downloads) if source.layouts else ()
    return source.open(paths, options)
