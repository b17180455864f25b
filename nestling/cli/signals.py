"""Signals that end the program: SIGTERM and SIGHUP act like Ctrl-C, so that whole rounds are saved first."""

from __future__ import annotations

import signal
from types import FrameType

_ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


class Stopped(KeyboardInterrupt):
    """The program was asked to end by a signal."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def install() -> None:
    """Let SIGTERM and SIGHUP raise `Stopped`; those that the program inherited as ignored (nohup) stay ignored.

    For the main thread of a process of ours: a library must not touch the handlers of its users' programs.
    """
    for number in _ENDING:
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _stop)


def exit_code(problem: BaseException) -> int:
    """Return what the program exits with: 128 and the number of the signal that stopped it.

    >>> exit_code(Stopped(15)), exit_code(KeyboardInterrupt())
    (143, 130)
    """
    found: BaseException | None = problem
    while found is not None:  # the command line's library wraps what it catches
        if isinstance(found, Stopped):
            return 128 + found.number
        found = found.__cause__ or found.__context__
    return 128 + signal.SIGINT


def _stop(number: int, frame: FrameType | None) -> None:
    for other in _ENDING:  # once is enough: a second one must not disturb the saving
        if signal.getsignal(other) is _stop:
            signal.signal(other, signal.SIG_IGN)
    raise Stopped(number)
