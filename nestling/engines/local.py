"""The local engine: one worker in this process, or several processes of one thread each.

Messages are pickled, and only exchanged between processes that we started ourselves. Their arrays are in shared memory
and are not copied on the way; a shared value is written there once for all workers. A worker that dies, or takes far
too long, is replaced and its job is handed out again; after two lost workers, the job is run in this process.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import pickle
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any

import torch

from nestling.engines.attempt import attempt_in_worker
from nestling.engines.engine import Failure, Reply, Shared, Work
from nestling.engines.limits import START, Stopwatch, TimeLimits
from nestling.engines.packing import dump, load
from nestling.engines.parent import check_guarded, end_if_script_is_unguarded, ending, prepare_child, start_child
from nestling.engines.retries import Task, Tasks, work_here
from nestling.engines.shared_memory import TRAVEL, Block
from nestling.errors import RunError, RunFailed, first_line
from nestling.events import report
from nestling.heap import keep_freed_memory

_LARGE = 2**16  # messages of at least so many bytes go through shared memory
_READY = -1  # the index of a worker's first message: it has started
_MAX_FAILED_STARTS = 3  # give up after so many workers in a row that end while they start
_PIPE_TIMEOUT = 300  # seconds for sending or receiving a message: a worker may be stopped in the middle of one


class LocalEngine:
    """Runs jobs on this machine.

    Parameters
    ----------
    make
        Makes a worker: a function from a job to its result. It is called once in every worker process, so it must be
        picklable if there is more than one.
    workers
        The number of workers; 1 runs everything in this process.
    timeout
        Seconds after which a worker that is still busy with a job is replaced; 0 for a limit derived from the duration
        of earlier jobs (see `nestling.engines.limits`).
    before_last_try
        Called before a job that two workers were lost with is run in this process, to save the state of the run.

    Examples
    --------
    >>> engine = LocalEngine(lambda: abs, workers=1)
    >>> [reply.value for reply in engine.work([-1, 2])]
    [1, 2]
    >>> engine.close()
    """

    def __init__(
        self,
        make: Callable[[], Work],
        workers: int = 1,
        *,
        timeout: float = 0.0,
        before_last_try: Callable[[], None] = lambda: None,
    ) -> None:
        if workers < 1:
            raise RunError(f"an engine has at least 1 worker, not {workers}")
        end_if_script_is_unguarded()
        self._make = make
        self._packed: _Parcel | None = None
        self._work: Work | None = None
        self._crew: list[_Worker] = []
        self._workers = workers
        self._limits = TimeLimits(timeout)
        self._before_last_try = before_last_try
        self._failed_starts = 0
        self._listening = False

    def share(self, value: Any) -> Any:
        """Put a value into shared memory, once for all workers; with one worker, return the value itself.

        >>> engine = LocalEngine(lambda: abs)
        >>> engine.share(3)
        3
        """
        return value if self._workers == 1 else _Parcel(value)

    def work(self, jobs: Sequence[Any], sizes: Sequence[float] | None = None) -> Iterator[Reply | Failure]:
        """Run jobs and yield the results as they arrive; one list of jobs at a time."""
        if self._workers == 1:
            yield from work_here(self._own_work(), jobs)
        else:
            yield from self._work_in_processes(jobs, sizes)

    def _own_work(self) -> Work:
        if self._work is None:
            self._work = self._make()
        return self._work

    def _work_in_processes(self, jobs: Sequence[Any], sizes: Sequence[float] | None) -> Iterator[Reply | Failure]:
        if self._listening:
            raise RunError("an engine does one list of jobs at a time: read all replies to the first, or close it")
        self._listening = True
        tasks = Tasks(jobs, sizes, self._limits)
        busy: dict[_Worker, Task] = {}
        try:
            watch = Stopwatch(self._limits.poll)
            while tasks.open or busy:
                self._hand_out(tasks, busy)
                yield from tasks.results()  # the workers are busy again while the caller handles these
                if tasks.lost_twice and not busy:  # no other worker needs memory now
                    tasks.do_here(self._own_work, _unpacked, self._before_last_try)
                if busy:
                    self._listen(tasks, busy, watch)
        finally:
            self._listening = False
            for worker in busy:  # the caller has stopped listening: their results are not needed
                worker.stop()
                if worker in self._crew:
                    self._crew.remove(worker)

    def _hand_out(self, tasks: Tasks, busy: dict[_Worker, Task]) -> None:
        """Give jobs to idle workers, and to new ones up to the number of workers."""
        idle = [worker for worker in self._crew if worker not in busy]
        while tasks.waiting > len(idle) and len(self._crew) < self._workers:
            idle.append(self._worker())
            self._crew.append(idle[-1])
        for worker in idle[: tasks.waiting]:
            next_task = tasks.take(_Parcel)
            if next_task is None:
                continue
            task, parcel = next_task
            if worker.send(task.index, parcel):
                busy[worker] = task
            else:
                tasks.put_back(task)
                self._failed(worker, "between two jobs")
            del next_task, parcel  # so that the values it shares are freed as soon as no job needs them

    def _listen(self, tasks: Tasks, busy: dict[_Worker, Task], watch: Stopwatch) -> None:
        """Receive messages for a short time, and replace workers that died or take too long."""
        ends = [end for worker in busy for end in (worker.pipe, worker.process.sentinel)]
        ready = wait(ends, timeout=self._limits.poll)
        passed = watch.tick()
        for worker, task in list(busy.items()):
            if worker.ready:
                task.seconds += passed
            else:
                worker.starting += passed
            if worker.pipe in ready or worker.process.sentinel in ready:
                self._hear(tasks, busy, worker)
            elif worker.starting > START:
                del busy[worker]
                tasks.put_back(task)
                self._failed(worker, "while it started", f"has not started within {START:.0f} seconds")
            elif tasks.late(task):
                del busy[worker]
                reason = f"gave no answer within {task.seconds:.0f} seconds"
                worker.kill()
                tasks.lost(task, worker.name, reason)
                self._remove(worker)

    def _hear(self, tasks: Tasks, busy: dict[_Worker, Task], worker: _Worker) -> None:
        """Receive a worker's message, or handle its end."""
        message = worker.receive()
        if message == _READY:
            self._failed_starts = 0
            return
        task = busy.pop(worker)
        if isinstance(message, Reply | Failure):
            if not tasks.done(task, message):
                self._remove(worker)  # the memory of a new process is not fragmented
        elif worker.ready:
            tasks.lost(task, worker.name, worker.gone())
            self._remove(worker)
        else:
            tasks.put_back(task)
            self._failed(worker, "while it started")

    def _failed(self, worker: _Worker, when: str, reason: str = "") -> None:
        """Report a worker that was lost before it began a job; raise if workers keep ending while they start."""
        reason = reason or worker.gone()
        self._remove(worker)
        check_guarded(worker.process, f"workers={self._workers}")
        self._failed_starts += not worker.ready
        if self._failed_starts >= _MAX_FAILED_STARTS:
            raise RunFailed(
                f"{_MAX_FAILED_STARTS} worker processes in a row could not start (the last one {reason}): "
                "see what they printed, or use workers=1"
            )
        report("worker lost", f"{worker.name} {reason} {when}; another takes its place")

    def _remove(self, worker: _Worker) -> None:
        """Stop a worker; another one is started when there is a job for it."""
        worker.stop()
        self._crew.remove(worker)

    def _worker(self) -> _Worker:
        if self._packed is None:
            try:
                self._packed = _Parcel(self._make)
            except (pickle.PicklingError, AttributeError, TypeError) as problem:
                raise RunError(
                    f"this cannot be sent to worker processes ({first_line(problem)}): use workers=1, or define "
                    "models, methods and functions at the top level of a module"
                ) from problem
        return _Worker(self._packed)

    def close(self) -> None:
        """Stop the workers."""
        for worker in self._crew:
            worker.stop()
        self._crew.clear()
        self._packed = None
        self._work = None


class _Worker:
    """A worker process and the pipe to it."""

    _numbers = itertools.count(1)

    def __init__(self, make: _Parcel) -> None:
        self.process, self.pipe = start_child(_serve, str(next(self._numbers)), daemon=True)
        _set_timeouts(self.pipe)
        self.name = f"worker process {self.process.pid}"
        self.ready = False
        self.starting = 0.0  # seconds
        self.send(0, make)

    def send(self, index: int, parcel: _Parcel) -> bool:
        try:
            _send(self.pipe, index, parcel)
        except OSError:
            return False
        return True

    def receive(self) -> Reply | Failure | int | None:
        """Return the worker's message, `_READY` if it has started, or None if it has ended."""
        try:
            index, opened = _receive(self.pipe)
        except (EOFError, OSError):
            return None
        if index == _READY:
            self.ready = True
            return _READY
        answer: Reply | Failure = opened()
        return answer

    def gone(self) -> str:
        """Return how the process ended, as the end of a sentence; kill it if it does not answer."""
        self.process.join(5)
        if self.process.exitcode is None:
            self.kill()
            return "does not answer any more"
        reason = ending(self.process.exitcode)
        if reason.endswith(("SIGINT", "SIGTERM", "SIGHUP")):
            time.sleep(0.5)  # most likely sent to all our processes: our own handler ends this one now
        return reason

    def kill(self) -> None:
        self.process.kill()  # a stopped process does not react to any other signal
        self.process.join()

    def stop(self) -> None:
        self.pipe.close()
        if self.process.is_alive():
            self.process.terminate()
            self.process.join(5)
        if self.process.is_alive():
            self.kill()


def _set_timeouts(pipe: Connection) -> None:
    """Set a timeout on a pipe, so that reading and writing fail if the other process is stopped."""
    if not TRAVEL:
        return
    with contextlib.closing(socket.socket(fileno=os.dup(pipe.fileno()))) as end:
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            end.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", _PIPE_TIMEOUT, 0))


def _serve(pipe: Connection) -> None:
    """Run jobs until the pipe closes: the main function of a worker process."""
    prepare_child("SIGINT", on_parent_end=lambda: os._exit(1))  # at once, even in a job: its result is not needed
    torch.set_num_threads(1)
    keep_freed_memory()
    with contextlib.suppress(EOFError, OSError):  # the parent has ended
        _send(pipe, _READY, _Parcel(None))
        _serve_jobs(pipe)


def _serve_jobs(pipe: Connection) -> None:
    _, make = _receive(pipe)

    @functools.cache
    def work() -> Work:
        function: Work = make()()
        return function

    while True:
        index, opened = _receive(pipe)
        answer = attempt_in_worker(index, work, opened, _Parcel)
        _send(pipe, index, answer)
        del opened, answer  # free their memory while waiting


class _Parcel(Shared):
    """A value ready for the pipe: as bytes if it is small, else as a block, of which only the descriptor is sent."""

    def __init__(self, value: Any) -> None:
        message = dump(value)
        parts = [memoryview(message.body), *message.arrays]
        self.shared = [parcel for parcel in message.shared if isinstance(parcel, _Parcel)]
        self.block = Block.of(parts) if TRAVEL and sum(part.nbytes for part in parts) >= _LARGE else None
        self.parts: list[Any] = [bytearray(part) if self.block is None else part.nbytes for part in parts]


def _send(pipe: Connection, index: int, parcel: _Parcel) -> None:
    parcels = [parcel, *parcel.shared]
    pipe.send_bytes(pickle.dumps((index, [(one.parts, one.block is not None) for one in parcels])))
    for one in parcels:
        if one.block is not None:
            send_handle(pipe, one.block.descriptor, 0)


def _receive(pipe: Connection) -> tuple[int, Callable[[], Any]]:
    """Return the index of the next parcel, and a function that unpacks it, which may fail."""
    index, heads = pickle.loads(pipe.recv_bytes())
    parcels = [(parts, Block(recv_handle(pipe)) if apart else None) for parts, apart in heads]

    def opened() -> Any:
        (body, *arrays), *shared = [parts if block is None else block.read(parts) for parts, block in parcels]
        return load(body, arrays, [load(body, arrays) for body, *arrays in shared])

    return index, opened


def _unpacked(job: Any) -> Any:
    """Return a job with the shared values themselves in it, as a worker would receive it."""
    message = dump(job)
    shared = [one for one in message.shared if isinstance(one, _Parcel)]
    read = [one.parts if one.block is None else one.block.read(one.parts) for one in shared]
    arrays = [bytearray(array) for array in message.arrays]
    return load(message.body, arrays, [load(body, parts) for body, *parts in read])
