"""The interface of all engines.

An engine knows nothing of federated learning. It gets a function that makes a worker (``make() → work``), runs
``work(job)`` somewhere for every job, and yields the results as they arrive, in any order. Values that many jobs need
are shared: sent to the workers once, or put in memory that all of them read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from nestling.events import Event

Work = Callable[[Any], Any]


@dataclass(frozen=True)
class Reply:
    """The value that a job returned; `index` is the job's position.

    `events` are those reported in the worker process, until the engine has forwarded them.
    """

    index: int
    value: Any
    events: tuple[Event, ...] = ()


@dataclass(frozen=True)
class Failure:
    """A job that raised an error. A retry would raise it again, so the caller decides what to do.

    A job whose worker was lost is not a failure: it is tried again, finally in the main process.
    """

    index: int
    reason: str
    error: Exception
    events: tuple[Event, ...] = ()


class Shared:
    """A reference to a shared value, which jobs carry instead of the value; each engine has its own kind."""


class Engine(Protocol):
    """Runs jobs."""

    def share(self, value: Any) -> Any:
        """Put a value where all workers can read it, and return a reference to it for jobs.

        In the worker, the job holds the value itself, which it must not change. The value exists as long as the
        reference.
        """
        ...

    def work(self, jobs: Sequence[Any], sizes: Sequence[float] | None = None) -> Iterator[Reply | Failure]:
        """Run jobs, the largest first if `sizes` are given, and yield the results as they arrive.

        A job is read from `jobs` when it is handed out, so a lazy sequence makes it only then. If its worker is lost,
        it is read again; after two lost workers it is run in this process. So all jobs are done whatever the machine
        does.
        """
        ...

    def close(self) -> None:
        """Stop the workers."""
        ...
