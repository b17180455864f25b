"""One directory, one writer: a lock on a file inside it, which the system releases when its process ends.

The lock is flock(2) on ``.lock``. The file is removed when the lock is released; a killed process leaves it behind,
without a lock, and the next one uses it again. A process that gets the lock therefore checks that the file is still
the one at its path: it may have locked a file that its last owner was about to remove.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from nestling.errors import RunError, RunFailed
from nestling.events import report
from nestling.experiment.disk import cannot_write

LOCK = ".lock"
_CANNOT_LOCK = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL}
_HELD = {errno.EAGAIN, errno.EWOULDBLOCK, errno.EACCES}
_ATTEMPTS = 100  # how often to try again if others remove the file meanwhile
_handles: set[int] = set()


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a directory, which is created if necessary; raise `RunError` if another writer holds it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as name, locked(Path(name)), locked(Path(name)):
    ...     pass
    Traceback (most recent call last):
        ...
    nestling.errors.RunError: '...' is being written by process ...: wait until it ends, or give another directory
    """
    try:
        handle = _take(folder)
    except OSError as problem:
        raise cannot_write(folder, problem) from None
    _handles.add(handle)
    try:
        yield
    finally:
        with suppress(OSError):  # the directory may have been removed meanwhile
            (folder / LOCK).unlink()
        _handles.discard(handle)
        os.close(handle)


def _take(folder: Path) -> int:
    """Open the lock file, lock it, and write our process id and host into it; return its handle."""
    for _ in range(_ATTEMPTS):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
        except FileNotFoundError:  # another process has removed the directory that it created and could not use
            continue
        try:
            _lock(folder, handle)
            if _still_there(folder / LOCK, handle):
                os.ftruncate(handle, 0)
                os.write(handle, f"{os.getpid()} {socket.gethostname()}\n".encode())
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)
    raise RunFailed(f"the lock of {str(folder)!r} could not be taken: others make and remove it all the time")


def _lock(folder: Path, handle: int) -> None:
    if sys.platform == "win32":
        _unsafe(folder, "this system has no flock")
        return
    import fcntl  # noqa: PLC0415 (not on Windows)

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as problem:
        if problem.errno in _HELD:
            raise RunError(
                f"{str(folder)!r} is being written by {_owner(handle)}: wait until it ends, or give another directory"
            ) from None
        if problem.errno not in _CANNOT_LOCK:
            raise
        _unsafe(folder, problem.strerror or str(problem))


def _unsafe(folder: Path, reason: str) -> None:
    report("no lock", f"{str(folder)!r} cannot be locked ({reason}): make sure that nothing else writes to it")


def _owner(handle: int) -> str:
    """Return the process that holds a lock, as its file says."""
    words = os.pread(handle, 300, 0).decode(errors="replace").split()
    if not words:
        return "another process"
    return f"process {words[0]}" + (f" on {words[1]}" if words[1:] not in ([], [socket.gethostname()]) else "")


def _still_there(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False


def _close_in_child() -> None:
    """Close the locks that a forked process inherits: they would outlive their owner."""
    for handle in _handles:
        with suppress(OSError):
            os.close(handle)
    _handles.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)
