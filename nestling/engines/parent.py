"""Our child processes and their parent: how they start, how they ended, and that they end with it.

Children are started by ``spawn``: a new Python imports the parent's main module first. A script without the usual
``if __name__ == "__main__":`` would so run itself again in every child.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess

NAME = "nestling-worker"  # how the names of our child processes begin
UNGUARDED = 77  # exit code of a child that found itself running the parent's script again
_POLL = 1.0  # seconds


def end_if_script_is_unguarded() -> None:
    """End this process, quietly, where it is a child of ours that runs its parent's script instead of jobs.

    The parent, which sees the exit code, says it in one sentence.
    """
    process = multiprocessing.current_process()
    if process.name.startswith(NAME) and getattr(process, "_inheriting", False):  # set while a child starts
        os._exit(UNGUARDED)


def unguarded(what: str) -> str:
    """Return the sentence for a script without a guard.

    >>> unguarded("workers=2")[:40]
    'workers=2 starts new Python processes, w'
    """
    return (
        f"{what} starts new Python processes, which import your script: put what it runs under "
        "'if __name__ == \"__main__\":', so that they do not run it again"
    )


def start(process: BaseProcess) -> None:
    """Start a child process, which hears nothing of Ctrl-C until it calls `ignore_terminal`.

    Else it would be interrupted in the middle of its imports, and say so at length.
    """
    if not hasattr(signal, "pthread_sigmask"):
        process.start()
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore_terminal(*names: str) -> None:
    """Ignore signals that a terminal sends to all processes of a program: they are for the parent of this one."""
    numbers = {getattr(signal, name) for name in names if hasattr(signal, name)}
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)


def ending(code: int | None) -> str:
    """Return how a process ended, as the end of a sentence.

    >>> ending(3), ending(-9)
    ('ended with exit code 3', 'was killed by SIGKILL')
    """
    if code is not None and -code in set(signal.Signals):
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def watch_parent(then: Callable[[], None]) -> None:
    """Call something, in a thread, as soon as the process that started this one has ended."""
    parent = multiprocessing.parent_process()
    if parent is None or parent.pid is None:
        return

    def watch() -> None:
        # the sentinel stays open where a fork of the parent holds it, so the parent's id is looked at, too
        while not wait([parent.sentinel], timeout=_POLL) and os.getppid() == parent.pid:
            pass
        then()

    threading.Thread(target=watch, name="nestling-watch-parent", daemon=True).start()
