"""Seconds of several things, measured in turn."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable


def side_by_side(
    *actions: Callable[[], object], repeats: int = 7, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """Return the median seconds of each action, all of them run in turn `repeats` times.

    >>> short, long = side_by_side(lambda: None, lambda: time.sleep(0.02), repeats=1)
    >>> short < long
    True
    """
    for action in actions:
        action()
    seconds: list[list[float]] = [[] for _ in actions]
    for _ in range(repeats):
        for action, spent in zip(actions, seconds, strict=True):
            start = clock()
            action()
            spent.append(clock() - start)
    return [statistics.median(spent) for spent in seconds]
