"""A job done: what came of it, and errors in a form that travels."""

from __future__ import annotations

import pickle
from typing import Any

from nestling.engines.engine import Failure, Reply, Work
from nestling.errors import RunFailed

TRIES = 2  # a job is given out once more where its worker was lost


def attempt(work: Work, index: int, job: Any) -> Reply | Failure:
    """Do a job; an error is a failure of this job alone."""
    try:
        return Reply(index, work(job))
    except Exception as problem:  # one bad job must not end the others; the caller judges
        return failure(index, problem)


def failure(index: int, problem: Exception) -> Failure:
    """A failure with its error, or with one that says the same where that cannot travel.

    >>> failure(3, KeyError("no such thing")).reason
    "KeyError: 'no such thing'"
    """
    reason = f"{type(problem).__name__}: {problem}"
    try:
        pickle.loads(pickle.dumps(problem))
    except Exception:  # an error may hold anything, and take anything to be made again
        problem = RunFailed(" ".join(reason.split()))
    return Failure(index, reason, problem)
