"""The tasks of one list of jobs: which are waiting, how often each was tried, and their results."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nestling.engines.attempt import TRIES, attempt, failure, out_of_memory
from nestling.engines.engine import Failure, Reply, Work
from nestling.engines.limits import TimeLimits
from nestling.errors import RunFailed, first_line
from nestling.events import forward, report


@dataclass(eq=False)
class Task:
    """A job that is handed out.

    Attributes
    ----------
    index
        Its position among the jobs.
    tries
        The number of this attempt, from 1.
    kind
        The job's `kind`, or its type: jobs of one kind take similarly long.
    seconds
        How long it has been running, as counted by a `Stopwatch`.
    parts
        The job's `parts`, or 1: it may take its time for each.
    """

    index: int
    tries: int = 1
    kind: str = ""
    seconds: float = 0.0
    parts: int = 1


class Tasks:
    """Hands out jobs, collects their results, and hands lost ones out again.

    Parameters
    ----------
    jobs, sizes
        As in `Engine.work`.
    limits
        The time limits of the engine.
    """

    def __init__(self, jobs: Sequence[Any], sizes: Sequence[float] | None, limits: TimeLimits) -> None:
        order = range(len(jobs)) if sizes is None else sorted(range(len(jobs)), key=lambda k: -sizes[k])
        self._jobs, self._limits = jobs, limits
        self._waiting = deque(Task(index) for index in order)
        self._results: deque[Reply | Failure] = deque()
        self.lost_twice: deque[tuple[Task, str]] = deque()

    @property
    def waiting(self) -> int:
        """The number of jobs that can be handed out now: none while one must be run in the main process first."""
        return 0 if self.lost_twice else len(self._waiting)

    @property
    def open(self) -> bool:
        """Whether there is a job to hand out, or a result to read."""
        return bool(self._waiting or self._results or self.lost_twice)

    def take(self, pack: Callable[[Any], Any]) -> tuple[Task, Any] | None:
        """Return the next task and its packed job; None if packing fails, which is recorded as the job's failure."""
        task = self._waiting.popleft()
        try:
            job = self._jobs[task.index]
            kind, parts = getattr(job, "kind", type(job).__name__), getattr(job, "parts", 1)
            return replace(task, kind=kind, seconds=0.0, parts=parts), pack(job)
        except Exception as problem:  # a job that cannot be sent must not end the others
            self._results.append(failure(task.index, problem))
            return None

    def put_back(self, task: Task) -> None:
        """Put back a task that its worker never began."""
        self._waiting.appendleft(task)

    def done(self, task: Task, result: Reply | Failure) -> bool:
        """Record a task's result; return False if its worker ran out of memory, and hand it out again."""
        forward(result.events)
        if isinstance(result, Failure) and out_of_memory(result.error):
            report("allocation failed", f"a worker could not do {self._named(task)}: {first_line(result.error)}")
            self._again(task, "memory could not be allocated")
            return False
        self._limits.finished(task.kind, task.seconds / task.parts)
        self._results.append(replace(result, events=()))
        return True

    def lost(self, task: Task, worker: str, reason: str) -> None:
        """Record that a worker was lost while it ran a task."""
        report("worker lost", f"{worker} {reason} while it did {self._named(task)}; another takes its place")
        self._again(task, reason)

    def late(self, task: Task) -> bool:
        """Return whether a task has exceeded its time limit."""
        return task.seconds > task.parts * self._limits.of(task.kind, task.tries)

    def results(self) -> Iterator[Reply | Failure]:
        """Yield the results so far, each once."""
        while self._results:
            yield self._results.popleft()

    def do_here(self, worker: Callable[[], Work], unpack: Callable[[Any], Any], before: Callable[[], None]) -> None:
        """Run a job that was lost twice in this process.

        Parameters
        ----------
        worker
            Returns the function that runs jobs here.
        unpack
            Returns a job with the shared values themselves in it.
        before
            Called first, to save the state of the run: a job that ends processes would now end this one.
        """
        task, reason = self.lost_twice.popleft()
        report(
            "job moved to the main process",
            f"{self._named(task)} was lost {TRIES} times ({reason}) and is now done in the main process; "
            "should that end too, the job itself ends processes, or takes more memory than there is",
        )
        before()
        try:
            work = worker()
        except Exception as problem:
            raise RunFailed(
                f"{self._named(task)} was lost {TRIES} times ({reason}), and cannot be done in the main process: "
                f"{first_line(problem)}"
            ) from problem
        self._results.append(attempt(lambda job: work(unpack(job)), task.index, self._jobs[task.index]))

    def _again(self, task: Task, reason: str) -> None:
        if task.tries < TRIES:
            self._waiting.appendleft(replace(task, tries=task.tries + 1))  # at once: other results may wait for it
        else:
            self.lost_twice.append((task, reason))

    def _named(self, task: Task) -> str:
        return f"job {task.index + 1} of {len(self._jobs)} ({task.kind})"


def work_here(work: Work, jobs: Sequence[Any]) -> Iterator[Reply | Failure]:
    """Run jobs one after another in this process; retry one that ran out of memory once."""
    for index in range(len(jobs)):
        result = attempt(work, index, jobs[index])
        if isinstance(result, Failure) and out_of_memory(result.error):
            report("allocation failed", f"job {index + 1} is tried again: {first_line(result.error)}")
            result = attempt(work, index, jobs[index])
        yield result
