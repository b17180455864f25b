"""Errors of the file system as one sentence: before the first round they are bad input, later a failure."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nestling.errors import RunError, RunFailed
from nestling.files import DISK_ERRORS, FULL_DISK


@contextmanager
def creating(folder: Path) -> Iterator[None]:
    """Raise `RunError` if a run directory cannot be created, or its first file cannot be written."""
    try:
        yield
    except OSError as problem:
        raise cannot_write(folder, problem) from problem


def cannot_write(folder: Path, problem: OSError) -> RunError:
    """Return the error that says why a directory cannot be written: `RunFailed` if the disk is the reason."""
    if problem.errno in DISK_ERRORS:
        return RunFailed(_sentence(problem, folder))
    reason = problem.strerror or str(problem)
    return RunError(f"the directory {str(folder)!r} cannot be written ({reason}): give another one")


@contextmanager
def writing(folder: Path | None) -> Iterator[None]:
    """Raise `RunFailed` if the directory of a run cannot be written any more; other errors pass."""
    try:
        yield
    except OSError as problem:
        if folder is None or not _concerns(problem, folder):
            raise
        raise RunFailed(_sentence(problem, folder)) from problem


def _concerns(problem: OSError, folder: Path) -> bool:
    """Return whether an error is about the disk or a path in the directory; an error of a worker's pipe is not."""
    if problem.errno in DISK_ERRORS:
        return True
    return problem.filename is not None and Path(str(problem.filename)).absolute().is_relative_to(folder.absolute())


def _sentence(problem: OSError, folder: Path) -> str:
    path, reason = repr(str(folder)), problem.strerror or str(problem)
    if problem.errno in FULL_DISK:
        return f"the disk of {path} is full ({reason}): make room, and go on with 'nestling resume'"
    if problem.errno == errno.EROFS:
        return f"the disk of {path} is read-only ({reason}): give a directory on another disk"
    if not folder.is_dir():
        return f"the directory {path} was removed while the run was writing to it"
    return f"the directory {path} cannot be written any more ({reason}): go on with 'nestling resume' when it can"
