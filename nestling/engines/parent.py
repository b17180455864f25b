"""Start child processes, describe how they ended, and end them with their parent.

Children are started by ``spawn``: a new Python imports the parent's main module first. So a script without the usual
``if __name__ == "__main__":`` would run itself again in every child.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess

NAME = "nestling-worker"  # the prefix of the names of our child processes
UNGUARDED = 77  # exit code of a child that found itself running the parent's script again
_POLL = 1.0  # seconds


def end_if_script_is_unguarded() -> None:
    """End this process silently if it is a child of ours that runs its parent's script instead of jobs.

    The parent recognises the exit code and raises an error.
    """
    process = multiprocessing.current_process()
    if process.name.startswith(NAME) and getattr(process, "_inheriting", False):  # set while a child starts
        os._exit(UNGUARDED)


def unguarded(what: str) -> str:
    """Return the error message for a script without a guard.

    >>> unguarded("workers=2")[:40]
    'workers=2 starts new Python processes, w'
    """
    return (
        f"{what} starts new Python processes, which import your script: put what it runs under "
        "'if __name__ == \"__main__\":', so that they do not run it again"
    )


def start(process: BaseProcess) -> None:
    """Start a child process with SIGINT blocked until it calls `ignore_terminal`.

    Otherwise Ctrl-C would interrupt it in the middle of its imports, with a long traceback.
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
    """Ignore signals that a terminal sends to all processes of a program: the parent handles them."""
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
    """Call `then`, in a thread, as soon as the parent process has ended."""
    parent = multiprocessing.parent_process()
    if parent is None or parent.pid is None:
        return

    def watch() -> None:
        # the sentinel stays open if a fork of the parent holds it, so the parent's id is checked, too
        while not wait([parent.sentinel], timeout=_POLL) and os.getppid() == parent.pid:
            pass
        then()

    threading.Thread(target=watch, name="nestling-watch-parent", daemon=True).start()
