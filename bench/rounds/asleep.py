"""Programs that wait for their turn leave the machine to the one whose turn it is."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def asleep() -> Iterator[None]:
    """Stop all processes that this one started, and those that they started, for as long as it waits.

    Ray's, for one, keep a twentieth of a core busy with nothing to do. The program itself stays awake, and so lets
    them go on when it is asked for a turn, or when nobody is left to ask. Where there is no ``/proc``, nothing is done.

    >>> with asleep():
    ...     pass
    """
    stopped = list(_descendants(os.getpid()))
    _tell(stopped, signal.SIGSTOP)
    try:
        yield
    finally:
        _tell(stopped, signal.SIGCONT)


def _tell(processes: list[int], what: signal.Signals) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, what)


def _descendants(process: int) -> Iterator[int]:
    children: dict[int, list[int]] = {}
    for about in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            parent = int(about.read_text().rpartition(")")[2].split()[1])  # names may hold anything, brackets too
            children.setdefault(parent, []).append(int(about.parent.name))
    waiting = children.get(process, [])
    while waiting:
        yield (descendant := waiting.pop())
        waiting += children.get(descendant, [])
