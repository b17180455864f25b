"""Read files from a folder, a tar or a zip in one pass, without unpacking to disk."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, cast

from nestling.errors import DataError

_PACKERS: dict[bytes, Callable[..., Any]] = {b"\x1f\x8b": gzip.open, b"\xfd7zXZ\0": lzma.open, b"BZh": bz2.open}


def contents(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Yield (name, bytes) of the wanted files in `path`; names use "/" and are relative to the folder or archive.

    Tars may be compressed by gzip, xz or bzip2. Zips inside a zip are searched, too: some sites pack twice.
    """
    if path.is_dir():
        for file in sorted(path.rglob("*")):
            name = file.relative_to(path.parent).as_posix()
            if file.is_file() and wanted(name):
                yield name, file.read_bytes()
    elif zipfile.is_zipfile(path):
        with path.open("rb") as packed:
            yield from _zipped(packed, wanted)
    else:
        # A stream, because seeking back in a compressed file means starting over. tarfile does not decompress it
        # itself: it would take a truncated stream for a complete one.
        with _unpacked(path) as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
            for member in archive:
                if member.isfile() and wanted(member.name) and (data := archive.extractfile(member)) is not None:
                    yield member.name, data.read()


def pick(path: Path, names: Iterable[str]) -> dict[str, bytes]:
    """Return the files called `names`, in whatever folder inside `path`; raise `DataError` if one is missing."""
    wanted = set(names)
    files = {_last(name): data for name, data in contents(path, lambda inner: _last(inner) in wanted)}
    if missing := sorted(wanted - set(files)):
        raise DataError(f"{str(path)!r} does not hold {missing[0]!r}")
    return files


def _unpacked(path: Path) -> IO[bytes]:
    with path.open("rb") as file:
        start = file.read(6)
    for mark, unpack in _PACKERS.items():
        if start.startswith(mark):
            return cast(IO[bytes], unpack(path, "rb"))
    return path.open("rb")


def _last(name: str) -> str:
    return name.rpartition("/")[2]


def _zipped(file: IO[bytes], wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(file) as archive:
        for name in sorted(archive.namelist()):
            if wanted(name) and not name.endswith("/"):
                yield name, archive.read(name)
            elif name.endswith(".zip"):
                yield from _zipped(io.BytesIO(archive.read(name)), wanted)
