"""Where data files are found, and the cache of arrays decoded from them.

Decoding CIFAR-10 takes seconds; memory-mapping its cached arrays takes no time.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from nestling.errors import DataError, NestlingError, first_line
from nestling.folders import cache_dir

Arrays = Mapping[str, NDArray[Any]]  # inputs, targets, test_inputs, test_targets, optionally users and test_users
Reader = Callable[[tuple[Path, ...]], Arrays]
Layout = tuple[str, ...]  # the files or folders that together make up a dataset
T = TypeVar("T")

_VERSION = 1  # increase it when a reader returns different arrays than before


def download_dir() -> Path:
    """Return the folder that `nestling data get` downloads to."""
    return cache_dir() / "data"


def find(
    name: str,
    layouts: Sequence[Layout],
    inside: Sequence[str],
    data_dir: str | Path | None = None,
    *,
    own: bool = False,
) -> tuple[Path, ...]:
    """Return the paths of the first of `layouts` whose files all exist.

    The search order is `data_dir`, ``NESTLING_DATA``, the downloads.

    Parameters
    ----------
    name
        The dataset, for the error message.
    layouts
        The forms the dataset comes in, the preferred one first.
    inside
        Subfolders to search in each of these folders; "" is the folder itself. A folder that already has the name of
        a subfolder is searched, too.
    own
        Whether the files are the caller's own and cannot be downloaded.
    """
    searched = []
    for label, path in (("data directory", data_dir), ("folder NESTLING_DATA", os.environ.get("NESTLING_DATA"))):
        if path:
            searched.append(Path(path).expanduser())
            if not searched[-1].is_dir():
                raise DataError(f"the {label} {str(searched[-1])!r} does not exist")
    searched.append(download_dir())
    for folder in searched:
        for subfolder in inside:
            for base in [folder / subfolder, *([folder] if subfolder and folder.resolve().name == subfolder else [])]:
                for layout in layouts:
                    paths = tuple(base / file for file in layout)
                    if all(path.exists() for path in paths):
                        return paths
    files = f"{layouts[0][0]!r}" + (f" and {len(layouts[0]) - 1} more" if len(layouts[0]) > 1 else "")
    others = ", nor another of its forms," if len(layouts) > 1 else ""
    # Where datasets share file names, only folders of the right name are searched: name those.
    folders = searched if "" in inside else [folder / inside[0] for folder in searched]
    where = " or ".join(repr(str(folder)) for folder in folders)
    advice = "set --data-dir or NESTLING_DATA to its folder" if own else f"fetch it with 'nestling data get {name}'"
    raise DataError(f"the data of {name!r} cannot be found: no {files}{others} in {where}; {advice}")


def cached_arrays(name: str, paths: tuple[Path, ...], read: Reader) -> Arrays:
    """Return the arrays that `read` decodes from `paths`; they are cached until one of the files changes.

    The arrays are mapped copy-on-write: processes share the memory, and writes to them never reach the disk.
    """
    folder = cache_dir() / "decoded" / f"{name}-{_fingerprint(paths)}"
    if not folder.is_dir():
        _write(read_checked(name, paths, read), folder)
    try:
        return {file.stem: np.load(file, mmap_mode="c", allow_pickle=False) for file in sorted(folder.glob("*.npy"))}
    except (OSError, ValueError) as problem:
        raise DataError(
            f"the decoded data in {str(folder)!r} is damaged ({first_line(problem)}): remove that folder"
        ) from problem


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def checksum_file(path: Path) -> Path:
    """Return the path of the checksum of a downloaded file, in the format of the program sha256sum."""
    return path.with_name(path.name + ".sha256")


def recorded_checksum(path: Path) -> str | None:
    """Return the checksum recorded when `path` was downloaded, or None if it was not."""
    record = checksum_file(path)
    return (record.read_text().split() or [""])[0] if record.is_file() else None


def read_checked(name: str, paths: tuple[Path, ...], read: Callable[[tuple[Path, ...]], T]) -> T:
    """Return ``read(paths)``; raise `DataError` if a file is damaged or differs from what was downloaded."""
    for path in paths:
        known = recorded_checksum(path)
        if known is not None and known != (actual := sha256(path)):
            raise DataError(
                f"{str(path)!r} is not the file that was fetched (its SHA-256 is {actual}, not {known}): "
                f"remove it and run 'nestling data get {name}'"
            )
    try:
        return read(paths)
    except NestlingError:
        raise
    except Exception as problem:  # each library raises its own errors for damaged files
        raise DataError(
            f"the data of {name!r} in {str(paths[0])!r} cannot be read, it may be damaged: "
            f"{type(problem).__name__}: {first_line(problem)}"
        ) from problem


def _write(arrays: Arrays, folder: Path) -> None:
    """Write the arrays to a temporary folder and rename it, so that `folder` is complete or does not exist."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            for key, array in arrays.items():
                np.save(scratch / f"{key}.npy", np.ascontiguousarray(array), allow_pickle=False)
            try:
                os.rename(scratch, folder)
            except OSError:
                if not folder.is_dir():  # otherwise another process wrote the same arrays first
                    raise
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    except OSError as problem:
        raise DataError(
            f"decoded data cannot be written to {str(folder.parent)!r} ({first_line(problem)}): "
            "set NESTLING_CACHE to a folder that can be written to"
        ) from problem


def _fingerprint(paths: tuple[Path, ...]) -> str:
    digest = hashlib.sha256(str(_VERSION).encode())
    for path in paths:
        folder = path.is_dir()
        if folder:
            digest.update(f"\n{path.resolve()}/".encode())  # an empty folder has no files, but changes the data, too
        for file in sorted(filter(Path.is_file, path.rglob("*"))) if folder else [path]:
            status = file.stat()
            digest.update(f"\n{file.resolve()} {status.st_size} {status.st_mtime_ns}".encode())
    return digest.hexdigest()[:16]
