"""One attempt at a job: its reply, or an error in a form that travels between processes."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from nestling.engines.blocks import SharedMemoryFull
from nestling.engines.engine import Failure, Reply, Work
from nestling.errors import RunFailed
from nestling.events import collect

TRIES = 2  # attempts in workers; a job that is lost so often is done in the main process
_ALLOCATORS = ("can't allocate memory", "out of memory")  # in the words of PyTorch's RuntimeErrors


def attempt(work: Work, index: int, job: Any) -> Reply | Failure:
    """Do a job; an error is a failure of this job alone."""
    try:
        return Reply(index, work(job))
    except Exception as problem:  # one bad job must not end the others; the caller judges
        return failure(index, problem)


def attempt_in_worker(index: int, work: Callable[[], Work], job: Callable[[], Any]) -> Reply | Failure:
    """Do a job in a worker process; the events that are reported meanwhile travel back with its result.

    Parameters
    ----------
    index
        The place of the job.
    work
        Returns what does jobs, building it where this is the first.
    job
        Returns the job, which may be more than can be read here.

    Examples
    --------
    >>> attempt_in_worker(0, lambda: abs, lambda: -3)
    Reply(index=0, value=3, events=())
    """
    with collect() as events:
        try:
            result = attempt(work(), index, job())
        except Exception as problem:  # whatever it is, the caller must hear of it
            result = failure(index, problem)
    return replace(result, events=tuple(events))


def failure(index: int, problem: Exception) -> Failure:
    """Return a failure with its error, or with one that says the same where that cannot travel.

    >>> failure(3, KeyError("no such thing")).reason
    "KeyError: 'no such thing'"
    """
    reason = f"{type(problem).__name__}: {problem}"
    try:
        pickle.loads(pickle.dumps(problem))
    except Exception:  # an error may hold anything, and take anything to be made again
        problem = RunFailed(" ".join(reason.split()))
    return Failure(index, reason, problem)


def out_of_memory(problem: Exception) -> bool:
    """Return whether an error says that memory could not be had, which may be different a moment later or elsewhere.

    >>> out_of_memory(MemoryError()), out_of_memory(RuntimeError("sizes do not match"))
    (True, False)
    >>> out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"))
    True
    """
    return isinstance(problem, MemoryError | SharedMemoryFull) or (
        isinstance(problem, RuntimeError) and any(words in str(problem) for words in _ALLOCATORS)
    )
