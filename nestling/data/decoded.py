"""Decoded arrays, kept: unpacking CIFAR-10 takes seconds, mapping its arrays into memory none."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from nestling.data.places import cache_dir
from nestling.errors import DataError, NestlingError, first_line

Arrays = Mapping[str, NDArray[Any]]  # inputs, targets, test_inputs, test_targets, perhaps users and test_users
Reader = Callable[[tuple[Path, ...]], Arrays]
T = TypeVar("T")

_VERSION = 1  # to be raised when a reader gives other arrays than before


def decoded(name: str, paths: tuple[Path, ...], read: Reader) -> Arrays:
    """Return what `read` makes of `paths`: from the cache if the files are those of last time, else read and kept.

    The arrays are mapped copy-on-write: processes share the memory, and nothing written to them reaches the disk.
    """
    home = cache_dir() / "decoded" / f"{name}-{_fingerprint(paths)}"
    if not home.is_dir():
        _keep(careful(name, paths, read), home)
    try:
        return {file.stem: np.load(file, mmap_mode="c", allow_pickle=False) for file in sorted(home.glob("*.npy"))}
    except (OSError, ValueError) as problem:
        raise DataError(
            f"the decoded data in {str(home)!r} is damaged ({first_line(problem)}): remove that folder"
        ) from problem


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def record_of(path: Path) -> Path:
    """Return where the checksum of a fetched file is written, in the format of the program sha256sum."""
    return path.with_name(path.name + ".sha256")


def recorded(path: Path) -> str | None:
    """Return the checksum that was recorded when `path` was fetched, if it was."""
    record = record_of(path)
    return (record.read_text().split() or [""])[0] if record.is_file() else None


def careful(name: str, paths: tuple[Path, ...], read: Callable[[tuple[Path, ...]], T]) -> T:
    """Return what `read` makes of `paths`, or say which file is damaged, or is no longer the one that was fetched."""
    for path in paths:
        known = recorded(path)
        if known is not None and known != (actual := sha256(path)):
            raise DataError(
                f"{str(path)!r} is not the file that was fetched (its SHA-256 is {actual}, not {known}): "
                f"remove it and run 'nestling data get {name}'"
            )
    try:
        return read(paths)
    except NestlingError:
        raise
    except Exception as problem:  # damaged files make each library fail in its own way
        raise DataError(
            f"the data of {name!r} in {str(paths[0])!r} cannot be read, it may be damaged: "
            f"{type(problem).__name__}: {first_line(problem)}"
        ) from problem


def _keep(arrays: Arrays, home: Path) -> None:
    """Write the arrays beside `home` and rename the whole: who looks sees all of it or nothing."""
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{home.name}-", dir=home.parent))
        try:
            for key, array in arrays.items():
                np.save(scratch / f"{key}.npy", np.ascontiguousarray(array), allow_pickle=False)
            try:
                os.rename(scratch, home)
            except OSError:
                if not home.is_dir():  # otherwise another process was first, with the same arrays
                    raise
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    except OSError as problem:
        raise DataError(
            f"decoded data cannot be kept in {str(home.parent)!r} ({first_line(problem)}): "
            "set NESTLING_CACHE to a folder that can be written to"
        ) from problem


def _fingerprint(paths: tuple[Path, ...]) -> str:
    digest = hashlib.sha256(str(_VERSION).encode())
    for path in paths:
        folder = path.is_dir()
        if folder:
            digest.update(f"\n{path.resolve()}/".encode())  # an empty one counts, too
        for file in sorted(filter(Path.is_file, path.rglob("*"))) if folder else [path]:
            status = file.stat()
            digest.update(f"\n{file.resolve()} {status.st_size} {status.st_mtime_ns}".encode())
    return digest.hexdigest()[:16]
