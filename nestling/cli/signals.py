"""Signals that end the program: SIGTERM and SIGHUP act like Ctrl-C, so that finished rounds are saved first."""

from __future__ import annotations

import signal
from types import FrameType

_HANDLED = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
_received: list[int] = []  # recorded here, as typer replaces the exception by another


class Stopped(KeyboardInterrupt):
    """A signal asked the program to end."""


def install() -> None:
    """Let SIGTERM and SIGHUP raise `Stopped`; signals inherited as ignored (nohup) stay ignored.

    Only for the main thread of our own program: a library must not change the handlers of its users' programs.
    """
    for number in _HANDLED:
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _stop)


def exit_code(otherwise: int) -> int:
    """Return 128 plus the number of the signal that stopped the program, or `otherwise` if none did.

    >>> exit_code(otherwise=130)
    130
    """
    return 128 + _received[0] if _received else otherwise


def _stop(number: int, frame: FrameType | None) -> None:
    _received.append(number)
    for other in _HANDLED:  # a second signal must not disturb the saving
        if signal.getsignal(other) is _stop:
            signal.signal(other, signal.SIG_IGN)
    raise Stopped
