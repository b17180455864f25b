"""Replies of an engine, in the order of the jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from nestling.engines import Engine, Failure
from nestling.errors import NestlingError, RunFailed


def replies(
    engine: Engine, jobs: Sequence[Any], sizes: Sequence[float] | None = None, tick: Callable[[], None] = lambda: None
) -> Iterator[Any]:
    """Yield what came of jobs in the order in which they were given, whichever is done first.

    A job whose worker died is left out, and not counted; an error stops the run, because it would come again.

    >>> from nestling.engines import LocalEngine
    >>> list(replies(LocalEngine(lambda: abs), [-1, 2]))
    [1, 2]
    """
    early: dict[int, Any] = {}
    following = 0
    for result in engine.work(jobs, sizes):
        if isinstance(result, Failure) and result.error is not None:
            if isinstance(result.error, NestlingError):
                raise result.error
            reason = " ".join(result.reason.split())  # of one line, whatever the client's own code says
            raise RunFailed(f"a client's work failed: {reason}") from result.error
        if not isinstance(result, Failure):
            tick()
        early[result.index] = result
        while following in early:
            ready = early.pop(following)
            following += 1
            if not isinstance(ready, Failure):
                yield ready.value
