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

TAR_SUFFIXES = (".tar.gz", ".tgz", ".tar.xz", ".tar")
_OPENERS: dict[bytes, Callable[..., Any]] = {b"\x1f\x8b": gzip.open, b"\xfd7zXZ\0": lzma.open, b"BZh": bz2.open}


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
            yield from _zip_contents(packed, wanted)
    else:
        # A stream, because seeking back in a compressed file means starting over. tarfile does not decompress it
        # itself: it would take a truncated stream for a complete one.
        with _decompressed(path) as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
            for member in archive:
                if member.isfile() and wanted(member.name) and (data := archive.extractfile(member)) is not None:
                    yield member.name, data.read()


def pick(path: Path, names: Iterable[str]) -> dict[str, bytes]:
    """Return the files called `names`, in whatever folder inside `path`; raise `DataError` if one is missing."""
    wanted = set(names)
    files = {file_name(name): data for name, data in contents(path, lambda name: file_name(name) in wanted)}
    if missing := sorted(wanted - set(files)):
        raise DataError(f"{str(path)!r} does not hold {missing[0]!r}")
    return files


def _decompressed(path: Path) -> IO[bytes]:
    with path.open("rb") as file:
        start = file.read(6)
    for signature, opener in _OPENERS.items():
        if start.startswith(signature):
            return cast(IO[bytes], opener(path, "rb"))
    return path.open("rb")


def file_name(name: str) -> str:
    """Return the last part of a name that `contents` yields."""
    return name.rpartition("/")[2]


def _zip_contents(file: IO[bytes], wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(file) as archive:
        for name in sorted(archive.namelist()):
            if wanted(name) and not name.endswith("/"):
                yield name, archive.read(name)
            elif name.endswith(".zip"):
                yield from _zip_contents(io.BytesIO(archive.read(name)), wanted)
