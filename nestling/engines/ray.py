"""The Ray engine: workers are Ray actors of one thread each, on this machine or on a cluster.

What is shared is put into Ray's object store once, and read there by every actor of a machine. An actor that is lost,
or takes far longer than it should, is replaced and its job given out once more; a job that two actors were lost with is
done in this process. A Ray that we start listens on this machine alone, and ends with us; one that was there before is
left as it was. Where Ray itself ends, it would end this process some ten seconds later without a word: the engine looks
for that every second, and raises an error first.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nestling.draws import own_this_process
from nestling.engines.attempt import TRIES, attempt_in_worker, failure
from nestling.engines.engine import Failure, Reply, Shared, Work
from nestling.engines.limits import Stopwatch, TimeLimits
from nestling.engines.messages import dump, load, travels
from nestling.engines.tasks import Task, Tasks
from nestling.errors import RunError, RunFailed, first_line
from nestling.events import report
from nestling.heap import keep_freed_memory

_PER_CORE = 16  # workers that a Ray started here may have
_LOOK = 1.0  # seconds between looks at whether Ray is there
_PATIENCE = 120.0  # seconds until Ray must have found room for at least one worker
_HABITS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # on every system: a Ray of our own talks to 127.0.0.1 only
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # as future versions do; saves a warning
}


class RayEngine:
    """Runs jobs on Ray.

    Parameters
    ----------
    make
        Makes a worker: a function from a job to its result. It is called once in every actor, so it must be picklable.
    workers
        How many actors.
    address
        Of a cluster to join, such as ``"auto"`` or ``"10.0.0.5:6379"``. Without one, Ray is used where this process is
        connected to it already, and else started here.
    gpus
        Whether workers compute on GPUs, which Ray then deals out to them.
    timeout, before_last_try
        As those of the `LocalEngine`.
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
        self._services: list[tuple[str, int]] = []
        self._checked = 0.0
        self._parts: Any = None
        self.crew: list[Any] = []
        self.limits = TimeLimits(timeout)
        self._listening = False

    def share(self, value: Any) -> Any:
        """Put a value into Ray's object store, once for all workers."""
        return _Put(self._put(value))

    def work(self, jobs: Sequence[Any], sizes: Sequence[float] | None = None) -> Iterator[Reply | Failure]:
        """Run jobs and yield what becomes of each as it comes; one list of jobs at a time."""
        if self._listening:
            raise RunError("an engine does one list of jobs at a time: read all replies to the first, or close it")
        self._listening = True
        shift = _Shift(self, jobs, sizes)
        try:
            ray = self._connected()
            while len(self.crew) < min(self._workers, len(jobs)):
                self.crew.append(self._actor())
            for actor in self.crew:  # new ones may wait for room, old ones may have died meanwhile
                shift.expect(actor)
            since, watch = time.monotonic(), Stopwatch(self.limits.poll)
            while shift.tasks.open or shift.busy:
                shift.hand_out()
                yield from shift.tasks.results()  # the workers are at work again while the caller looks at these
                if shift.tasks.lost_twice and not shift.busy:
                    shift.tasks.do_here(self._own_work, self._unpacked, self._before_last_try)
                if not (shift.tasks.waiting or shift.busy):
                    continue
                done, _ = ray.wait(shift.awaited(), timeout=self.limits.poll)
                self.check_services()
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
            for actor, _ in shift.busy.values():  # the caller has stopped listening: what they do is of no use
                self._stop(actor)
                if actor in self.crew:
                    self.crew.remove(actor)

    def close(self) -> None:
        """Stop the workers; leave Ray where we joined it."""
        for actor in self.crew:
            self._stop(actor)
        self.crew.clear()
        self._parts = self._work = None
        if self._began:
            self._ray.shutdown()
        self._ray, self._began, self._services = None, False, []

    def _connected(self) -> Any:
        if self._ray is None:
            ray = need_ray()
            if not ray.is_initialized():
                _begin(ray, self._workers, self._address)
                self._began = True
            self._ray = ray
            self._services = _services(ray, self._began and not self._address)
        return self._ray

    def check_services(self, now: bool = False) -> None:
        """Raise where the processes of Ray that this one depends on have ended; looks once a second, or `now`."""
        if not now and time.monotonic() - self._checked < _LOOK:
            return
        self._checked = time.monotonic()
        for host, port in self._services:
            if not _refused(host, port):
                continue
            self.crew.clear()  # nobody could be told to end
            raise RunFailed(
                "Ray has ended on this machine (it crashed, or was killed, often for lack of memory): what is saved "
                "can be resumed, with fewer workers or engine=local if it happens again"
            )

    def _put(self, value: Any) -> Any:
        message = dump(value)
        return self._connected().put((message.body, _arrays(message.arrays)))

    def _own_work(self) -> Work:
        if self._work is None:
            self._work = self._make()
        return self._work

    def _unpacked(self, job: Any) -> Any:
        """Return a job with the shared values themselves in it, as it would arrive at a worker."""
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
        """Put a new worker in the place of one that is lost."""
        self._stop(actor)
        new = self.crew[self.crew.index(actor)] = self._actor()
        return new

    def _stop(self, actor: Any) -> None:
        if self._ray is not None and self._ray.is_initialized() and actor in self.crew:
            self._ray.kill(actor)


class _Shift:
    """One list of jobs: who does which, and who is idle or about to come."""

    def __init__(self, engine: RayEngine, jobs: Sequence[Any], sizes: Sequence[float] | None) -> None:
        self._engine = engine
        self._coming: dict[Any, Any] = {}
        self._idle: list[Any] = []
        self._refused = 0
        self._processes: dict[Any, tuple[str, int]] = {}  # actor → its machine and process
        self.tasks = Tasks(jobs, sizes, engine.limits)
        self.busy: dict[Any, tuple[Any, Task]] = {}

    def awaited(self) -> list[Any]:
        return [*self.busy, *self._coming]

    def expect(self, actor: Any) -> None:
        """Ask an actor whether it has started."""
        self._coming[actor.ready.remote()] = actor

    def hand_out(self) -> None:
        """Give jobs to whoever is idle."""
        while self._idle and self.tasks.waiting:
            taken = self.tasks.take(dump)
            if taken is None:
                continue
            task, message = taken
            actor = self._idle.pop()
            shared = [one.reference for one in message.shared if isinstance(one, _Put)]
            self.busy[actor.do.remote(task.index, message.body, _arrays(message.arrays), *shared)] = actor, task

    def hear(self, ray: Any, reference: Any) -> None:
        """Take in what an actor says, or that it is lost."""
        if reference in self._coming:
            actor = self._coming.pop(reference)
            try:
                self._processes[actor] = ray.get(reference)
                self._refused = 0
                self._idle.append(actor)
            except ray.exceptions.RayError as problem:
                self._engine.check_services(now=True)
                self._refused += 1
                if self._refused > TRIES * len(self._engine.crew):
                    raise RunFailed(f"Ray cannot start a worker: {_last_line(problem)}") from problem
                report("worker lost", f"{self._named(actor)} ended between two jobs; another takes its place")
                self.expect(self._engine.replaced(actor))
            return
        actor, task = self.busy.pop(reference)
        try:
            result: Reply | Failure = load(*ray.get(reference))
        except ray.exceptions.RayError as problem:
            self._engine.check_services(now=True)
            self.tasks.lost(task, self._named(actor), f"was lost ({first_line(problem)})")
        else:
            if self.tasks.done(task, result):
                self._idle.append(actor)
                return
        self.expect(self._engine.replaced(actor))

    def replace_late(self, passed: float) -> None:
        """Replace workers that take too long, now that so many seconds have passed."""
        for reference, (actor, task) in list(self.busy.items()):
            task.seconds += passed
            if not self.tasks.late(task):
                continue
            del self.busy[reference]
            self.tasks.lost(task, self._named(actor), f"gave no answer within {task.seconds:.0f} seconds")
            machine, process = self._processes[actor]
            if machine == socket.gethostname():  # Ray asks a worker to end, which a stopped one does not hear
                with contextlib.suppress(OSError):
                    os.kill(process, signal.SIGKILL)
            self.expect(self._engine.replaced(actor))

    def _named(self, actor: Any) -> str:
        machine, process = self._processes.get(actor, ("", 0))
        return f"Ray's worker process {process} on {machine}" if process else "a worker process of Ray's"


class _Actor:
    """A worker: the whole of it runs in a process of Ray's."""

    def __init__(self, make: tuple[bytes, list[Any]], paths: list[str]) -> None:
        torch.set_num_threads(1)
        keep_freed_memory()
        own_this_process()
        sys.path.extend(path for path in paths if path not in sys.path)  # what the caller can import, we can
        self._make = make
        self._work: Work | None = None

    def ready(self) -> tuple[str, int]:
        """Return the machine and the process of this worker, which has started."""
        return socket.gethostname(), os.getpid()

    def do(self, index: int, body: bytes, arrays: list[Any], *shared: tuple[bytes, list[Any]]) -> Any:
        """Do a job, and return its reply or failure, taken apart."""
        result = attempt_in_worker(index, self._made, lambda: load(body, arrays, [load(*one) for one in shared]))
        try:
            answer = dump(result)
        except Exception as problem:  # whatever cannot be sent, the caller must hear of it
            answer = dump(replace(failure(index, problem), events=result.events))
        return answer.body, _arrays(answer.arrays)

    def _made(self) -> Work:
        if self._work is None:
            self._work = load(*self._make)()
        return self._work


class _Put(Shared):
    """A value in Ray's object store, which lives as long as its reference."""

    def __init__(self, reference: Any) -> None:
        self.reference = reference


def _arrays(parts: Sequence[memoryview]) -> list[Any]:
    """Bytes as arrays, which Ray carries without copying them more than once."""
    return [np.frombuffer(part, dtype=np.uint8) for part in parts]


def need_ray() -> Any:
    """Return the package, or say in one sentence that it is missing."""
    for name, value in _HABITS.items():
        os.environ.setdefault(name, value)
    try:
        return importlib.import_module("ray")
    except ModuleNotFoundError:
        raise RunError("the Ray engine needs the package 'ray': pip install 'nestling[ray]'") from None


def _begin(ray: Any, workers: int, address: str) -> None:
    """Join the Ray at an address, or start one here."""
    quiet = {"log_to_driver": False, "logging_level": "error"}
    if address:
        host, colon, port = address.rpartition(":")
        try:
            if colon and port.isdigit() and "/" not in host:  # Ray itself would try for minutes
                socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
            with _own_handlers():
                ray.init(address=address, **quiet)
        except (OSError, RuntimeError, ValueError) as problem:
            raise RunError(f"no Ray can be joined at {address!r}: {first_line(problem)}") from problem
        return
    most = _PER_CORE * (os.cpu_count() or 1)
    if workers > most:
        raise RunError(f"workers={workers} are more than a Ray started here may have: {_PER_CORE} per core, {most}")
    with _own_handlers():
        ray.init(address="local", num_cpus=workers, include_dashboard=False, **quiet)
    if not ip_address(ray.util.get_node_ip_address()).is_loopback:
        ray.shutdown()
        raise RunError(
            "a Ray started here would listen to other machines, because ray was imported before: set "
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0, or start Ray yourself and give its address"
        )


@contextlib.contextmanager
def _own_handlers() -> Iterator[None]:
    """Keep the caller's handler of SIGTERM, where there is one: Ray puts its own in its place, which just exits."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if before not in (None, signal.SIG_DFL) and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _services(ray: Any, own: bool) -> list[tuple[str, int]]:
    """Where the processes listen that this one cannot do without: the raylet of this machine, and a GCS of our own."""
    here = ray.get_runtime_context().get_node_id()
    nodes = [node for node in ray.nodes() if node["NodeID"] == here]
    found = [(str(node["NodeManagerAddress"]), int(node["NodeManagerPort"])) for node in nodes]
    host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
    return [*found, (host.strip("[]"), int(port))] if own else found  # a cluster's may come back


def _refused(host: str, port: int) -> bool:
    """Whether nobody listens at an address any more; one that is slow to answer is still there."""
    try:
        socket.create_connection((host, port), timeout=1.0).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False


def _last_line(problem: Exception) -> str:
    """The last line of what Ray says: the error itself, after all the places that it went through."""
    return (str(problem).strip() or type(problem).__name__).splitlines()[-1].strip()
