"""How long a job may take before its worker counts as stuck.

The limit is part of the settings (`worker_timeout`), or follows from what such jobs took so far. A worker that was
replaced by mistake costs time and nothing else: its job is done again, at last in the main process without a limit.
"""

from __future__ import annotations

import time

_LEAST = 120.0  # seconds that a job always has
_MULTIPLE = 20.0  # of the longest job of its kind so far
_UNKNOWN = 1800.0  # seconds for a kind of job of which none is done yet
_POLL = 1.0  # seconds between looks at the workers

START = 600.0  # seconds until a worker process must have started: it imports PyTorch, maybe from a slow disk


class TimeLimits:
    """Time limits of jobs by their kind.

    Parameters
    ----------
    fixed
        Seconds for every job; 0 for an automatic limit: twenty times the longest job of the kind so far, at least two
        minutes, and half an hour before any is done. A second attempt has twice the automatic limit.

    Examples
    --------
    >>> limits = TimeLimits()
    >>> limits.of("Train")
    1800.0
    >>> limits.finished("Train", 60.0)
    >>> limits.of("Train"), limits.of("Train", tries=2)
    (1200.0, 2400.0)
    """

    def __init__(self, fixed: float = 0.0) -> None:
        self._fixed = fixed
        self._longest: dict[str, float] = {}

    def of(self, kind: str, tries: int = 1) -> float:
        """Return the seconds that a job of a kind may take in its first or a later attempt."""
        if self._fixed:
            return self._fixed
        longest = self._longest.get(kind)
        return tries * (_UNKNOWN if longest is None else max(_LEAST, _MULTIPLE * longest))

    def finished(self, kind: str, seconds: float) -> None:
        """Take note that a job of a kind took so long."""
        self._longest[kind] = max(seconds, self._longest.get(kind, 0.0))

    @property
    def poll(self) -> float:
        """Seconds between two looks at the workers."""
        return min(_POLL, max(0.05, self._fixed / 4)) if self._fixed else _POLL


class Stopwatch:
    """Counts the seconds between looks at the workers, but not those in which this process did not run.

    A machine that slept, or a program that was stopped and continued (Ctrl-Z, fg), must not find all its workers late.
    So no interval counts for more than twice the time between looks.
    """

    def __init__(self, poll: float) -> None:
        self._most = 2 * poll
        self._last = time.monotonic()

    def tick(self) -> float:
        """Return the seconds to count since the last call."""
        before, self._last = self._last, time.monotonic()
        return min(self._most, self._last - before)
