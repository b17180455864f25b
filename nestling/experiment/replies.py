"""Replies of an engine, in the order of the jobs."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from nestling.engines import Engine, Failure
from nestling.engines.attempt import out_of_memory
from nestling.errors import NestlingError, RunFailed


def replies(
    engine: Engine, jobs: Sequence[Any], sizes: Sequence[float] | None = None, tick: Callable[[], None] = lambda: None
) -> Iterator[Any]:
    """Yield what came of jobs in the order in which they were given, whichever is done first.

    Every job is answered: one whose worker is lost is done by another. An error stops the run, because it would come
    again.

    >>> from nestling.engines import LocalEngine
    >>> list(replies(LocalEngine(lambda: abs), [-1, 2]))
    [1, 2]
    """
    early: dict[int, Any] = {}
    following = 0
    for result in engine.work(jobs, sizes):
        if isinstance(result, Failure):
            raise _error(result)
        tick()
        early[result.index] = result.value
        while following in early:
            yield early.pop(following)
            following += 1


def _error(failure: Failure) -> NestlingError:
    """Return the error of a job as one that people can act on."""
    if isinstance(failure.error, NestlingError):
        return failure.error
    reason = textwrap.shorten(failure.reason, 300, placeholder=" …")
    problem = RunFailed(
        f"there is not enough memory ({reason}): use fewer workers, a smaller local.batch, or cohort=off"
        if out_of_memory(failure.error)
        else f"a client's work failed: {reason}"
    )
    problem.__cause__ = failure.error
    return problem
