"""Time limits of jobs, after which a worker counts as stuck.

The limit is the setting `worker_timeout`, or is derived from the duration of earlier jobs. Replacing a worker by
mistake only costs time: its job is run again, finally in the main process without a limit.
"""

from __future__ import annotations

import time

_LEAST = 120.0  # the minimum limit in seconds
_MULTIPLE = 20.0  # the limit as a multiple of the longest job of its kind so far
_UNKNOWN = 1800.0  # the limit in seconds while no job of its kind is done
_POLL = 1.0  # seconds between two checks of the workers

START = 600.0  # seconds until a worker process must have started: it imports PyTorch, possibly from a slow disk


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
        """Record how long a job of a kind took."""
        self._longest[kind] = max(seconds, self._longest.get(kind, 0.0))

    @property
    def poll(self) -> float:
        """Seconds between two checks of the workers."""
        return min(_POLL, max(0.05, self._fixed / 4)) if self._fixed else _POLL


class Stopwatch:
    """Counts the seconds between checks of the workers, but not those in which this process did not run.

    After the machine slept, or the program was stopped and continued (Ctrl-Z, fg), the workers must not count as late.
    So no interval counts for more than twice the time between checks.
    """

    def __init__(self, poll: float) -> None:
        self._most = 2 * poll
        self._last = time.monotonic()

    def tick(self) -> float:
        """Return the seconds to count since the last call."""
        before, self._last = self._last, time.monotonic()
        return min(self._most, self._last - before)
