"""The Ray engine: workers are Ray actors of one thread each, on this machine or on a cluster.

What is shared is put into Ray's object store once, and read there by every actor of a machine. An actor that is lost is
replaced and its job given out once more, then reported as a failure. A Ray that we start listens on this machine alone,
and ends with us; one that was there before is left as it was.
"""

from __future__ import annotations

import importlib
import math
import os
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nestling.engines.attempt import TRIES, attempt, failure
from nestling.engines.engine import Failure, Reply, Shared, Work
from nestling.engines.messages import dump, load, travels
from nestling.errors import RunError, RunFailed, first_line
from nestling.heap import keep_freed_memory

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
    """

    def __init__(self, make: Callable[[], Work], workers: int = 1, address: str = "", gpus: bool = False) -> None:
        if workers < 1:
            raise RunError(f"an engine has at least 1 worker, not {workers}")
        if not travels(make):
            raise RunError("what Ray's workers are made from cannot be pickled: define it at the top level of a module")
        self._make, self._workers, self._address, self._gpus = make, workers, address, gpus
        self._ray: Any = None
        self._began = False  # the connection is ours to end
        self._parts: Any = None
        self.crew: list[Any] = []
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
            since = time.monotonic()
            while shift.open():
                shift.hand_out()
                while shift.results:  # the workers are at work again while the caller looks at these
                    yield shift.results.popleft()
                done, _ = ray.wait(shift.awaited(), timeout=1.0) if shift.open() else ([], [])
                for told in done:
                    shift.hear(ray, told)
                since = time.monotonic() if done or shift.busy else since
                if time.monotonic() - since > _PATIENCE:
                    raise RunFailed(
                        f"Ray found no room for a worker within {_PATIENCE:.0f} seconds: "
                        f"it has {ray.cluster_resources().get('CPU', 0):.0f} CPUs, and others may use them"
                    )
        finally:
            self._listening = False
            for actor, _, _ in shift.busy.values():  # the caller has stopped listening: what they do is of no use
                self._stop(actor)
                if actor in self.crew:
                    self.crew.remove(actor)

    def close(self) -> None:
        """Stop the workers; leave Ray where we joined it."""
        for actor in self.crew:
            self._stop(actor)
        self.crew.clear()
        self._parts = None
        if self._began:
            self._ray.shutdown()
        self._ray, self._began = None, False

    def _connected(self) -> Any:
        if self._ray is None:
            ray = need_ray()
            if not ray.is_initialized():
                _begin(ray, self._workers, self._address)
                self._began = True
            self._ray = ray
        return self._ray

    def _put(self, value: Any) -> Any:
        message = dump(value)
        return self._connected().put((message.body, _arrays(message.arrays)))

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
        if self._ray is not None and self._ray.is_initialized():
            self._ray.kill(actor)


class _Shift:
    """One list of jobs: those that wait, who does which, and who is idle or about to come."""

    def __init__(self, engine: RayEngine, jobs: Sequence[Any], sizes: Sequence[float] | None) -> None:
        order = range(len(jobs)) if sizes is None else sorted(range(len(jobs)), key=lambda k: -sizes[k])
        self._engine, self._jobs = engine, jobs
        self._waiting = deque((index, 1) for index in order)
        self._coming: dict[Any, Any] = {}
        self._idle: list[Any] = []
        self._refused = 0
        self.busy: dict[Any, tuple[Any, int, int]] = {}
        self.results: deque[Reply | Failure] = deque()

    def open(self) -> bool:
        return bool(self._waiting or self.busy or self.results)

    def awaited(self) -> list[Any]:
        return [*self.busy, *self._coming]

    def expect(self, actor: Any) -> None:
        """Ask an actor whether it is there."""
        self._coming[actor.ready.remote()] = actor

    def hand_out(self) -> None:
        """Give jobs to whoever is idle."""
        while self._idle and self._waiting:
            index, tries = self._waiting.popleft()
            try:
                message = dump(self._jobs[index])
            except Exception as problem:  # whatever cannot be sent is this job's failure alone
                self.results.append(failure(index, problem))
                continue
            actor = self._idle.pop()
            shared = [one.reference for one in message.shared if isinstance(one, _Put)]
            self.busy[actor.do.remote(index, message.body, _arrays(message.arrays), *shared)] = actor, index, tries

    def hear(self, ray: Any, told: Any) -> None:
        """Take in what an actor told, or that it is lost."""
        if told in self._coming:
            actor = self._coming.pop(told)
            try:
                ray.get(told)
                self._refused = 0
                self._idle.append(actor)
            except ray.exceptions.RayError as problem:
                self._refused += 1
                if self._refused > TRIES * len(self._engine.crew):
                    raise RunFailed(f"Ray cannot start a worker: {_last_line(problem)}") from problem
                self.expect(self._engine.replaced(actor))
            return
        actor, index, tries = self.busy.pop(told)
        try:
            self.results.append(load(*ray.get(told)))
            self._idle.append(actor)
        except ray.exceptions.RayError as problem:
            self.expect(self._engine.replaced(actor))
            if tries < TRIES:
                self._waiting.appendleft((index, tries + 1))  # at once: others may have to wait for it
            else:
                self.results.append(Failure(index, f"its worker ended {TRIES} times ({first_line(problem)})"))


class _Actor:
    """A worker: the whole of it runs in a process of Ray's."""

    def __init__(self, make: tuple[bytes, list[Any]], paths: list[str]) -> None:
        torch.set_num_threads(1)
        keep_freed_memory()
        sys.path.extend(path for path in paths if path not in sys.path)  # what the caller can import, we can
        self._make = make
        self._work: Work | None = None

    def ready(self) -> None:
        """Be there."""

    def do(self, index: int, body: bytes, arrays: list[Any], *shared: tuple[bytes, list[Any]]) -> Any:
        """Do a job, and return its reply or failure, taken apart."""
        try:
            if self._work is None:
                self._work = load(*self._make)()
            job = load(body, arrays, [load(*one) for one in shared])
            answer = dump(attempt(self._work, index, job))
        except Exception as problem:  # whatever it is, the caller must hear of it
            answer = dump(failure(index, problem))
        return answer.body, _arrays(answer.arrays)


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
            ray.init(address=address, **quiet)
        except (OSError, RuntimeError, ValueError) as problem:
            raise RunError(f"no Ray can be joined at {address!r}: {first_line(problem)}") from problem
        return
    ray.init(address="local", num_cpus=workers, include_dashboard=False, **quiet)
    if not ip_address(ray.util.get_node_ip_address()).is_loopback:
        ray.shutdown()
        raise RunError(
            "a Ray started here would listen to other machines, because ray was imported before: set "
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0, or start Ray yourself and give its address"
        )


def _last_line(problem: Exception) -> str:
    """The last line of what Ray says: the error itself, after all the places that it went through."""
    return (str(problem).strip() or type(problem).__name__).splitlines()[-1].strip()
