"""One attempt at a job: its reply, or its error in a form that can be sent between processes."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from nestling.engines.engine import Failure, Reply, Work
from nestling.engines.shared_memory import SharedMemoryFull
from nestling.errors import RunFailed
from nestling.events import collect

Packed = TypeVar("Packed")
TRIES = 2  # attempts in workers; a job that is lost so often is run in the main process
_ALLOCATORS = ("can't allocate memory", "out of memory")  # parts of PyTorch's RuntimeErrors


def attempt(work: Work, index: int, job: Any) -> Reply | Failure:
    """Run a job; an error becomes a `Failure` of this job alone."""
    try:
        return Reply(index, work(job))
    except Exception as problem:  # one bad job must not end the others; the caller decides
        return failure(index, problem)


def attempt_in_worker(
    index: int, work: Callable[[], Work], job: Callable[[], Any], pack: Callable[[Reply | Failure], Packed]
) -> Packed:
    """Run a job in a worker process and return its packed result, with the events reported meanwhile.

    Parameters
    ----------
    index
        The position of the job.
    work
        Returns the function that runs jobs; the first call builds it.
    job
        Returns the job; unpacking it may fail here.
    pack
        Packs the result; if that fails, the error is packed instead.

    Examples
    --------
    >>> attempt_in_worker(0, lambda: abs, lambda: -3, pack=lambda result: result)
    Reply(index=0, value=3, events=())
    """
    with collect() as events:
        try:
            result = attempt(work(), index, job())
        except Exception as problem:  # every error must reach the caller
            result = failure(index, problem)
    try:
        return pack(replace(result, events=tuple(events)))
    except Exception as problem:
        return pack(replace(failure(index, problem), events=tuple(events)))


def failure(index: int, problem: Exception) -> Failure:
    """Return a failure with its error, or with a `RunFailed` of the same message if the error cannot be pickled.

    >>> failure(3, KeyError("no such thing")).reason
    "KeyError: 'no such thing'"
    """
    reason = f"{type(problem).__name__}: {problem}"
    try:
        pickle.loads(pickle.dumps(problem))
    except Exception:  # an error may hold anything, and need any arguments to be rebuilt
        problem = RunFailed(" ".join(reason.split()))
    return Failure(index, reason, problem)


def out_of_memory(problem: Exception) -> bool:
    """Return whether an error is a failed allocation, which may succeed later or in another process.

    >>> out_of_memory(MemoryError()), out_of_memory(RuntimeError("sizes do not match"))
    (True, False)
    >>> out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"))
    True
    """
    return isinstance(problem, MemoryError | SharedMemoryFull) or (
        isinstance(problem, RuntimeError) and any(text in str(problem) for text in _ALLOCATORS)
    )
