"""Write files atomically: to a temporary file, forced to disk, then renamed."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

FULL_DISK = (errno.ENOSPC, errno.EDQUOT)
DISK_ERRORS = (*FULL_DISK, errno.EROFS, errno.EIO)  # caused by the machine, not by the input


def write_whole(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file so that a crash leaves either the old one or the new one, complete; errors name the file.

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
            os.fchmod(file.fileno(), 0o666 & ~_umask())  # as of any new file; a temporary file is private
            os.fsync(file.fileno())
        Path(draft).replace(target)
    except BaseException as problem:
        Path(draft).unlink(missing_ok=True)
        if isinstance(problem, OSError) and problem.errno and problem.filename is None:  # the system says no name
            problem.filename = str(target)
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
