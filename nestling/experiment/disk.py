"""What the file system refuses to a run, as one sentence: before the first round it is bad input, later a failure."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nestling.errors import RunError, RunFailed

_FULL = (errno.ENOSPC, errno.EDQUOT)
_DISK = (*_FULL, errno.EROFS, errno.EIO)  # whatever the path is


@contextmanager
def creating(folder: Path) -> Iterator[None]:
    """Raise one sentence where a run directory cannot be made, or its first file not be written."""
    try:
        yield
    except OSError as problem:
        raise cannot_write(folder, problem) from problem


def cannot_write(folder: Path, problem: OSError) -> RunError:
    """Return the error that says why a directory cannot be written: a failure where it is the disk's fault."""
    if problem.errno in _DISK:
        return RunFailed(_sentence(problem, folder))
    reason = problem.strerror or str(problem)
    return RunError(f"the directory {str(folder)!r} cannot be written ({reason}): give another one")


@contextmanager
def writing(folder: Path | None) -> Iterator[None]:
    """Raise one sentence where the directory of a run cannot be written any more; other errors pass."""
    try:
        yield
    except OSError as problem:
        if folder is None or not _concerns(problem, folder):
            raise
        raise RunFailed(_sentence(problem, folder)) from problem


def _concerns(problem: OSError, folder: Path) -> bool:
    """Whether an error is about the disk, or about a path in the directory: one of a worker's pipe is not."""
    if problem.errno in _DISK:
        return True
    return problem.filename is not None and Path(str(problem.filename)).absolute().is_relative_to(folder.absolute())


def _sentence(problem: OSError, folder: Path) -> str:
    place, reason = repr(str(folder)), problem.strerror or str(problem)
    if problem.errno in _FULL:
        return f"the disk of {place} is full ({reason}): make room, and go on with 'nestling resume'"
    if problem.errno == errno.EROFS:
        return f"the disk of {place} is read-only ({reason}): give a directory on another disk"
    if not folder.is_dir():
        return f"the directory {place} was removed while the run was writing to it"
    return f"the directory {place} cannot be written any more ({reason}): go on with 'nestling resume' when it can"
