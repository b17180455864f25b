"""The Ray engine: workers are Ray actors of one thread each, on this machine or on a cluster.

Shared values are put into Ray's object store once, where every actor of a machine reads them. An actor that is lost, or
takes far too long, is replaced and its job is handed out again; after two lost actors, the job is run in this process.
A Ray that we start listens on this machine only, and ends with us; one that was already running is left running. If Ray
itself ends, it would end this process, too, without a message: the engine checks for that before every call
(`nestling.engines.ray_services`), and raises an error first.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nestling.draws import own_this_process
from nestling.engines.attempt import TRIES, attempt_in_worker
from nestling.engines.engine import Failure, Reply, Shared, Work
from nestling.engines.limits import Stopwatch, TimeLimits
from nestling.engines.packing import dump, load, travels
from nestling.engines.ray_services import RayServices
from nestling.engines.ray_start import begin_ray, need_ray
from nestling.engines.retries import Task, Tasks
from nestling.errors import RunError, RunFailed, first_line
from nestling.events import report
from nestling.heap import keep_freed_memory

_PATIENCE = 120.0  # seconds until Ray must have started at least one worker


class RayEngine:
    """Runs jobs on Ray.

    Parameters
    ----------
    make
        Makes a worker: a function from a job to its result. It is called once in every actor, so it must be picklable.
    workers
        The number of actors.
    address
        The address of a cluster to join, such as ``"auto"`` or ``"10.0.0.5:6379"``. Without one, an existing connection
        of this process is used, or else Ray is started here.
    gpus
        Whether workers compute on GPUs, which Ray then assigns to them.
    timeout, before_last_try
        As in `LocalEngine`.

    Attributes
    ----------
    received
        The bytes of all results so far.
    """

    def __init__(
        self,
        make: Callable[[], Work],
        workers: int = 1,
        address: str = "",
        gpus: bool = False,
        *,
        timeout: float = 0.0,
        before_last_try: Callable[[], None] = lambda: None,
    ) -> None:
        if workers < 1:
            raise RunError(f"an engine has at least 1 worker, not {workers}")
        if not travels(make):
            raise RunError("what Ray's workers are made from cannot be pickled: define it at the top level of a module")
        self._make, self._workers, self._address, self._gpus = make, workers, address, gpus
        self._before_last_try = before_last_try
        self._work: Work | None = None
        self._ray: Any = None
        self._began = False  # the connection is ours to end
        self._services: RayServices | None = None
        self._parts: Any = None
        self.crew: list[Any] = []
        self.limits = TimeLimits(timeout)
        self._listening = False
        self.received = 0

    def share(self, value: Any) -> Any:
        """Put a value into Ray's object store, once for all workers."""
        return _Put(self._put(value))

    def work(self, jobs: Sequence[Any], sizes: Sequence[float] | None = None) -> Iterator[Reply | Failure]:
        """Run jobs and yield the results as they arrive; one list of jobs at a time."""
        if self._listening:
            raise RunError("an engine does one list of jobs at a time: read all replies to the first, or close it")
        self._listening = True
        shift = _Shift(self, jobs, sizes)
        try:
            ray = self._connected()
            while len(self.crew) < min(self._workers, len(jobs)):
                self.crew.append(self._actor())
            for actor in self.crew:  # new ones may have to wait for resources, old ones may have died meanwhile
                shift.expect(actor)
            since, watch = time.monotonic(), Stopwatch(self.limits.poll)
            while shift.tasks.open or shift.busy:
                shift.hand_out()
                yield from shift.tasks.results()  # the workers are busy again while the caller handles these
                if shift.tasks.lost_twice and not shift.busy:
                    shift.tasks.do_here(self._own_work, self._unpacked, self._before_last_try)
                if not (shift.tasks.waiting or shift.busy):
                    continue
                self.check_services()
                done, _ = ray.wait(shift.awaited(), timeout=self.limits.poll)
                for reference in done:
                    shift.hear(ray, reference)
                shift.replace_late(watch.tick())
                since = time.monotonic() if done or shift.busy else since
                if time.monotonic() - since > _PATIENCE:
                    raise RunFailed(
                        f"Ray found no room for a worker within {_PATIENCE:.0f} seconds: "
                        f"it has {ray.cluster_resources().get('CPU', 0):.0f} CPUs, and others may use them"
                    )
        finally:
            self._listening = False
            for actor, _ in shift.busy.values():  # the caller has stopped listening: their results are not needed
                self._stop(actor)
                if actor in self.crew:
                    self.crew.remove(actor)

    def close(self) -> None:
        """Stop the workers; leave Ray running unless we started it."""
        for actor in self.crew:
            self._stop(actor)
        self.crew.clear()
        self._parts = self._work = None
        if self._services is not None:
            self._services.close()
        if self._began:
            self._ray.shutdown()
        self._ray, self._began, self._services = None, False, None

    def _connected(self) -> Any:
        if self._ray is None:
            ray = need_ray()
            if not ray.is_initialized():
                begin_ray(ray, self._workers, self._address)
                self._began = True
            self._ray = ray
            self._services = RayServices(ray, self._began and not self._address)
        self.check_services()
        return self._ray

    def check_services(self) -> None:
        """Raise if the Ray processes that this one depends on have ended."""
        if self._services is None:
            return
        try:
            self._services.check()
        except RunFailed:
            self.crew.clear()  # they cannot be reached any more
            raise

    def _put(self, value: Any) -> Any:
        message = dump(value)
        return self._connected().put((message.body, _arrays(message.arrays)))

    def _own_work(self) -> Work:
        if self._work is None:
            self._work = self._make()
        return self._work

    def _unpacked(self, job: Any) -> Any:
        """Return a job with the shared values themselves in it, as a worker would receive it."""
        message = dump(job)
        shared = [self._connected().get(one.reference) for one in message.shared if isinstance(one, _Put)]
        return load(message.body, [bytearray(array) for array in message.arrays], [load(*one) for one in shared])

    def _actor(self) -> Any:
        ray = self._connected()
        if self._parts is None:
            self._parts = self._put(self._make)
        total = ray.cluster_resources().get("GPU", 0) if self._gpus else 0
        share = 1 / math.ceil(self._workers / total) if total else 0
        paths = [str(Path(path).resolve()) for path in sys.path]
        return ray.remote(_Actor).options(num_cpus=1, num_gpus=share, max_restarts=0).remote(self._parts, paths)

    def replaced(self, actor: Any) -> Any:
        """Replace a lost worker by a new one."""
        self._stop(actor)
        new = self.crew[self.crew.index(actor)] = self._actor()
        return new

    def _stop(self, actor: Any) -> None:
        if self._ray is not None and self._ray.is_initialized() and actor in self.crew:
            self._ray.kill(actor)


class _Shift:
    """The state of one list of jobs: which actors are busy, idle or starting."""

    def __init__(self, engine: RayEngine, jobs: Sequence[Any], sizes: Sequence[float] | None) -> None:
        self._engine = engine
        self._starting: dict[Any, Any] = {}
        self._idle: list[Any] = []
        self._refused = 0
        self._processes: dict[Any, tuple[str, int]] = {}  # actor → its machine and process
        self.tasks = Tasks(jobs, sizes, engine.limits)
        self.busy: dict[Any, tuple[Any, Task]] = {}

    def awaited(self) -> list[Any]:
        return [*self.busy, *self._starting]

    def expect(self, actor: Any) -> None:
        """Wait for an actor to start."""
        self._starting[actor.ready.remote()] = actor

    def hand_out(self) -> None:
        """Give jobs to idle actors."""
        while self._idle and self.tasks.waiting:
            taken = self.tasks.take(dump)
            if taken is None:
                continue
            task, message = taken
            actor = self._idle.pop()
            shared = [one.reference for one in message.shared if isinstance(one, _Put)]
            self._engine.check_services()
            self.busy[actor.do.remote(task.index, message.body, _arrays(message.arrays), *shared)] = actor, task

    def hear(self, ray: Any, reference: Any) -> None:
        """Receive an actor's result, or handle its loss."""
        self._engine.check_services()
        if reference in self._starting:
            actor = self._starting.pop(reference)
            try:
                self._processes[actor] = ray.get(reference)
                self._refused = 0
                self._idle.append(actor)
            except ray.exceptions.RayError as problem:
                self._engine.check_services()
                self._refused += 1
                if self._refused > TRIES * len(self._engine.crew):
                    raise RunFailed(f"Ray cannot start a worker: {_last_line(problem)}") from problem
                report("worker lost", f"{self._named(actor)} ended between two jobs; another takes its place")
                self.expect(self._engine.replaced(actor))
            return
        actor, task = self.busy.pop(reference)
        try:
            body, arrays = ray.get(reference)
            self._engine.received += len(body) + sum(array.nbytes for array in arrays)
            result: Reply | Failure = load(body, arrays)
        except ray.exceptions.RayError as problem:
            self._engine.check_services()
            self.tasks.lost(task, self._named(actor), f"was lost ({first_line(problem)})")
        else:
            if self.tasks.done(task, result):
                self._idle.append(actor)
                return
        self.expect(self._engine.replaced(actor))

    def replace_late(self, passed: float) -> None:
        """Replace workers that take too long; `passed` is the time in seconds since the last check."""
        for reference, (actor, task) in list(self.busy.items()):
            task.seconds += passed
            if not self.tasks.late(task):
                continue
            del self.busy[reference]
            self.tasks.lost(task, self._named(actor), f"gave no answer within {task.seconds:.0f} seconds")
            machine, process = self._processes[actor]
            if machine == socket.gethostname():  # Ray asks a worker to end, but a stopped one does not react
                with contextlib.suppress(OSError):
                    os.kill(process, signal.SIGKILL)
            self.expect(self._engine.replaced(actor))

    def _named(self, actor: Any) -> str:
        machine, process = self._processes.get(actor, ("", 0))
        return f"Ray's worker process {process} on {machine}" if process else "a worker process of Ray's"


class _Actor:
    """A worker; it runs in a process of Ray."""

    def __init__(self, make: tuple[bytes, list[Any]], paths: list[str]) -> None:
        torch.set_num_threads(1)
        keep_freed_memory()
        own_this_process()
        sys.path.extend(path for path in paths if path not in sys.path)  # import whatever the caller can import
        self._make = make
        self._work: Work | None = None

    def ready(self) -> tuple[str, int]:
        """Return the machine and the process id of this worker."""
        return socket.gethostname(), os.getpid()

    def do(self, index: int, body: bytes, arrays: list[Any], *shared: tuple[bytes, list[Any]]) -> Any:
        """Run a job and return its packed reply or failure."""
        answer = attempt_in_worker(
            index, self._own_work, lambda: load(body, arrays, [load(*one) for one in shared]), dump
        )
        return answer.body, _arrays(answer.arrays)

    def _own_work(self) -> Work:
        if self._work is None:
            self._work = load(*self._make)()
        return self._work


class _Put(Shared):
    """A value in Ray's object store, which exists as long as its reference."""

    def __init__(self, reference: Any) -> None:
        self.reference = reference


def _arrays(parts: Sequence[memoryview]) -> list[Any]:
    """Return bytes as arrays, which Ray copies only once."""
    return [np.frombuffer(part, dtype=np.uint8) for part in parts]


def _last_line(problem: Exception) -> str:
    """Return the last line of Ray's message: the error itself, after the traceback."""
    return (str(problem).strip() or type(problem).__name__).splitlines()[-1].strip()
