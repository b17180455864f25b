"""Start child processes, describe how they ended, and end them with their parent.

Children are started by ``spawn``: a new Python imports the parent's main module first. So a script without the usual
``if __name__ == "__main__":`` would run itself again in every child.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from nestling.draws import own_this_process
from nestling.errors import RunError

_NAME = "nestling-worker"  # the prefix of the names of our child processes
_UNGUARDED = 77  # exit code of a child that found itself running the parent's script again
_POLL = 1.0  # seconds


def end_if_script_is_unguarded() -> None:
    """End this process silently if it is a child of ours that runs its parent's script instead of jobs.

    The parent recognises the exit code and raises an error.
    """
    process = multiprocessing.current_process()
    if process.name.startswith(_NAME) and getattr(process, "_inheriting", False):  # set while a child starts
        os._exit(_UNGUARDED)


def check_guarded(process: BaseProcess, what: str) -> None:
    """Raise if a child ended because `what` was called by a script without a guard."""
    if process.exitcode == _UNGUARDED:
        raise RunError(
            f"{what} starts new Python processes, which import your script: put what it runs under "
            "'if __name__ == \"__main__\":', so that they do not run it again"
        )


def start_child(
    main: Callable[[Connection], None], name: str, *, daemon: bool = False
) -> tuple[BaseProcess, Connection]:
    """Start a process that runs `main` with one end of a pipe; return the process and the other end.

    SIGINT is blocked until the child calls `prepare_child`: Ctrl-C would interrupt its imports with a long traceback.
    """
    context = multiprocessing.get_context("spawn")  # a fork of a process with PyTorch's threads may hang
    ours, theirs = context.Pipe()
    process = context.Process(target=main, args=(theirs,), daemon=daemon, name=f"{_NAME}-{name}")
    if hasattr(signal, "pthread_sigmask"):
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    else:
        process.start()
    theirs.close()
    return process, ours


def prepare_child(*ignored: str, on_parent_end: Callable[[], None]) -> None:
    """Prepare a child process for its work.

    Parameters
    ----------
    ignored
        The signals that a terminal sends to all processes of a program, and that the parent alone handles.
    on_parent_end
        Called in a thread as soon as the parent process has ended.
    """
    numbers = {getattr(signal, name) for name in ignored if hasattr(signal, name)}
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
    _watch_parent(on_parent_end)
    logging.getLogger("nestling").addHandler(logging.NullHandler())  # the parent logs events; nothing is printed here
    own_this_process()


def ending(code: int | None) -> str:
    """Return how a process ended, as the end of a sentence.

    >>> ending(3), ending(-9)
    ('ended with exit code 3', 'was killed by SIGKILL')
    """
    if code is not None and -code in set(signal.Signals):
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def _watch_parent(then: Callable[[], None]) -> None:
    parent = multiprocessing.parent_process()
    if parent is None or parent.pid is None:
        return

    def watch() -> None:
        # the sentinel stays open if a fork of the parent holds it, so the parent's id is checked, too
        while not wait([parent.sentinel], timeout=_POLL) and os.getppid() == parent.pid:
            pass
        then()

    threading.Thread(target=watch, name="nestling-watch-parent", daemon=True).start()
