"""Signals that end the program: SIGTERM and SIGHUP act like Ctrl-C, so that whole rounds are saved first."""

from __future__ import annotations

import signal
from types import FrameType

_ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
_received: list[int] = []  # kept apart, as the command line's library turns what was raised into other things


class Stopped(KeyboardInterrupt):
    """The program was asked to end by a signal."""


def install() -> None:
    """Let SIGTERM and SIGHUP raise `Stopped`; those that the program inherited as ignored (nohup) stay ignored.

    For the main thread of a process of ours: a library must not touch the handlers of its users' programs.
    """
    for number in _ENDING:
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _stop)


def exit_code(otherwise: int) -> int:
    """Return what a program that was stopped by one of these signals exits with: 128 and its number.

    >>> exit_code(otherwise=130)
    130
    """
    return 128 + _received[0] if _received else otherwise


def _stop(number: int, frame: FrameType | None) -> None:
    _received.append(number)
    for other in _ENDING:  # once is enough: a second one must not disturb the saving
        if signal.getsignal(other) is _stop:
            signal.signal(other, signal.SIG_IGN)
    raise Stopped
