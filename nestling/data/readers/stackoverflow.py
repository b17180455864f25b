"""Stack Overflow, as TensorFlow Federated hands it out: 342,477 users to train on, sentences of questions and answers.

Three forms: its HDF5 files, its SQLite file (packed or not), or a folder of text files for each part. Words are
those of the file ``stackoverflow.word_count`` where it lies beside them, else all sentences are read once.
"""

from __future__ import annotations

import lzma
import shutil
import tempfile
from functools import partial
from pathlib import Path

from nestling.data.archive import pick
from nestling.data.decoded import careful
from nestling.data.places import cache_dir
from nestling.data.readers.user_store import Hdf5, LineSource, Sqlite, TextFiles
from nestling.data.text.by_user import by_user
from nestling.data.text.corpus import Text
from nestling.data.text.options import TextOptions
from nestling.errors import DataError, first_line

_H5 = ("stackoverflow_train.h5", "stackoverflow_test.h5", "stackoverflow_held_out.h5")
LAYOUTS = (
    _H5,
    _H5[:2],
    ("stackoverflow.sqlite",),
    ("stackoverflow.sqlite.lzma",),
    ("train", "test", "validation"),
    ("train", "test"),
)
OWN_LAYOUTS = (*LAYOUTS[4:], ("train",))
_PARTS = ("train", "test", "validation")
_COUNTS = "stackoverflow.word_count"


def open_text(paths: tuple[Path, ...], options: TextOptions) -> Text:
    """Open Stack Overflow in whatever form it is there."""
    files = [paths[0].parent / _COUNTS, paths[0].parent / f"{_COUNTS}.tar.bz2"]
    counted = [file for file in files if file.is_file()][:1]
    if paths[0].suffix == ".lzma":
        paths = (_unpacked(paths[0]),)
    sources: dict[str, LineSource]
    if paths[0].suffix == ".h5":
        sources = {part: Hdf5(path) for part, path in zip(_PARTS, paths, strict=False)}
    elif paths[0].suffix == ".sqlite":
        splits = {"train": "train", "test": "test", "validation": "heldout"}
        sources = {part: Sqlite(paths[0], split) for part, split in splits.items()}
    else:
        sources = {part: TextFiles(path) for part, path in zip(_PARTS, paths, strict=False)}
    counts = partial(_word_counts, counted[0]) if counted else None
    return by_user("stackoverflow", (*paths, *counted), sources, options, counts)


def open_own(paths: tuple[Path, ...], options: TextOptions) -> Text:
    """Open folders of text files of one's own."""
    sources = {part: TextFiles(path) for part, path in zip(_PARTS, paths, strict=False)}
    return by_user("text-files", paths, sources, options)


def _word_counts(file: Path) -> dict[str, int]:
    """Words and in how many users' texts each occurs, a line each: counted by whoever made the data."""
    text = (file.read_bytes() if file.name == _COUNTS else pick(file, [_COUNTS])[_COUNTS]).decode()
    found = {}
    for number, line in enumerate(text.splitlines(), start=1):
        parts = line.split()
        if len(parts) != 2 or not parts[1].isdecimal():
            raise DataError(f"{_COUNTS}, line {number}: {line[:60]!r} is not a word and a number")
        found[parts[0]] = int(parts[1])
    if not found:
        raise DataError(f"{str(file)!r} holds no words: remove it, and the sentences will be counted")
    return found


def _unpacked(path: Path) -> Path:
    """Unpack a file into the cache, once: users cannot be read out of a packed one."""
    status = path.stat()
    target = cache_dir() / "unpacked" / f"{status.st_size}-{status.st_mtime_ns}" / path.stem
    if not target.exists():
        careful("stackoverflow", (path,), partial(_unpack, target))
    return target


def _unpack(target: Path, paths: tuple[Path, ...]) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch, lzma.open(paths[0]) as packed:
            with Path(scratch, target.name).open("wb") as file:
                shutil.copyfileobj(packed, file, 2**20)
            Path(scratch, target.name).replace(target)
    except OSError as problem:
        raise DataError(
            f"{str(paths[0])!r} cannot be unpacked to {str(target.parent)!r} ({first_line(problem)}): "
            "set NESTLING_CACHE to a folder that can be written to"
        ) from None
