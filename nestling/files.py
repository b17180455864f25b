"""Files that are whole or not there: written beside their place, forced to disk, renamed."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_whole(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file such that a crash leaves either the old one or the new one, whole.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_whole(f"{folder}/figures.json", b"{}")
    ...     Path(folder, "figures.json").read_bytes()
    b'{}'
    """
    target = Path(path)
    handle, draft = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), 0o666 & ~_umask())  # as any new file: a draft is for nobody else's eyes
            os.fsync(file.fileno())
        Path(draft).replace(target)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
    sync(target.parent)


def sync(path: str | os.PathLike[str]) -> None:
    """Force a file or a folder to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
