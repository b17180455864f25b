"""The interface of all engines.

An engine knows nothing of federated learning. It is given a function that makes a worker (``make() → work``), runs
``work(job)`` somewhere for every job, and yields what came of each as soon as it is there, in whatever order. What many
jobs need is shared: carried to the workers once, or lying in memory that they all read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from nestling.events import Event

Work = Callable[[Any], Any]


@dataclass(frozen=True)
class Reply:
    """What a job returned; `index` is its place among the jobs given.

    `events` are those that it reported in a worker process, until the engine has passed them on.
    """

    index: int
    value: Any
    events: tuple[Event, ...] = ()


@dataclass(frozen=True)
class Failure:
    """A job that raised an error. It would come again, so it is the caller's to judge.

    A job whose worker was lost is no failure: it is tried again, at last in the main process.
    """

    index: int
    reason: str
    error: Exception
    events: tuple[Event, ...] = ()


class Shared:
    """Stands for a value in the jobs that carry it; what it is made of is an engine's own affair."""


class Engine(Protocol):
    """Somewhere to run jobs."""

    def share(self, value: Any) -> Any:
        """Put a value where all workers can read it, and return what jobs carry in its place.

        Where a job is done it holds the value itself, which it must not change. The value stays as long as what is
        returned here.
        """
        ...

    def work(self, jobs: Sequence[Any], sizes: Sequence[float] | None = None) -> Iterator[Reply | Failure]:
        """Run jobs, the largest first where `sizes` are given, and yield what becomes of each as it comes.

        A job is taken out of `jobs` when it is handed out, so a sequence may make it only then. One that is lost with
        its worker is taken again, and done in this process where two workers were lost with it: what the machine does
        never decides which jobs are done.
        """
        ...

    def close(self) -> None:
        """Stop the workers."""
        ...
