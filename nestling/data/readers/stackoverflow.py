"""Stack Overflow as published by TensorFlow Federated: sentences of questions and answers by 342,477 training users.

Three forms: its HDF5 files, its SQLite file (compressed or not), or a folder of text files for each part. Word counts
are read from the file ``stackoverflow.word_count`` beside them; without it, all sentences are read once to count them.
"""

from __future__ import annotations

import lzma
import shutil
import tempfile
from functools import partial
from pathlib import Path

from nestling.data.archive import pick
from nestling.data.cache import read_checked
from nestling.data.readers.user_store import Hdf5, LineSource, Sqlite, TextFiles
from nestling.data.text.by_user import by_user
from nestling.data.text.corpus import Text, TextOptions
from nestling.errors import DataError, first_line
from nestling.folders import cache_dir

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
    """Open Stack Overflow in any of its forms."""
    files = [paths[0].parent / _COUNTS, paths[0].parent / f"{_COUNTS}.tar.bz2"]
    count_files = [file for file in files if file.is_file()][:1]
    if paths[0].suffix == ".lzma":
        paths = (_decompressed(paths[0]),)
    sources: dict[str, LineSource]
    if paths[0].suffix == ".h5":
        sources = {part: Hdf5(path) for part, path in zip(_PARTS, paths, strict=False)}
    elif paths[0].suffix == ".sqlite":
        splits = {"train": "train", "test": "test", "validation": "heldout"}
        sources = {part: Sqlite(paths[0], split) for part, split in splits.items()}
    else:
        sources = {part: TextFiles(path) for part, path in zip(_PARTS, paths, strict=False)}
    counts = partial(_word_counts, count_files[0]) if count_files else None
    return by_user("stackoverflow", (*paths, *count_files), sources, options, counts)


def open_own(paths: tuple[Path, ...], options: TextOptions) -> Text:
    """Open the user's own folders of text files."""
    sources = {part: TextFiles(path) for part, path in zip(_PARTS, paths, strict=False)}
    return by_user("text-files", paths, sources, options)


def _word_counts(file: Path) -> dict[str, int]:
    """Read the published word counts: on each line, a word and the number of users whose texts hold it."""
    text = (file.read_bytes() if file.name == _COUNTS else pick(file, [_COUNTS])[_COUNTS]).decode()
    counts = {}
    for number, line in enumerate(text.splitlines(), start=1):
        parts = line.split()
        if len(parts) != 2 or not parts[1].isdecimal():
            raise DataError(f"{_COUNTS}, line {number}: {line[:60]!r} is not a word and a number")
        counts[parts[0]] = int(parts[1])
    if not counts:
        raise DataError(f"{str(file)!r} holds no words: remove it, and the words of all sentences will be counted")
    return counts


def _decompressed(path: Path) -> Path:
    """Decompress a file into the cache, once: single users cannot be read from a compressed one."""
    status = path.stat()
    target = cache_dir() / "unpacked" / f"{status.st_size}-{status.st_mtime_ns}" / path.stem
    if not target.exists():
        read_checked("stackoverflow", (path,), partial(_decompress, target))
    return target


def _decompress(target: Path, paths: tuple[Path, ...]) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder, lzma.open(paths[0]) as packed:
            partial_file = Path(folder, target.name)
            with partial_file.open("wb") as file:
                shutil.copyfileobj(packed, file, 2**20)
            partial_file.replace(target)
    except OSError as problem:
        raise DataError(
            f"{str(paths[0])!r} cannot be unpacked to {str(target.parent)!r} ({first_line(problem)}): "
            "set NESTLING_CACHE to a folder that can be written to"
        ) from None
