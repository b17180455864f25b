"""The local engine: one worker in this process, or several processes of one thread each.

Messages are pickled between processes that we started ourselves, never taken from outside. Their arrays lie in shared
memory, which nobody copies on the way; what is shared is written there once, whoever reads it. A worker that dies is
replaced and its job given out once more, then reported as a failure.
"""

from __future__ import annotations

import multiprocessing
import pickle
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any

import torch

from nestling.draws import own_this_process
from nestling.engines.attempt import TRIES, attempt, failure
from nestling.engines.blocks import TRAVEL, Block
from nestling.engines.engine import Failure, Reply, Shared, Work
from nestling.engines.messages import dump, load
from nestling.errors import RunError, first_line
from nestling.heap import keep_freed_memory

_LARGE = 2**16  # bytes from which on a message goes through shared memory


class LocalEngine:
    """Runs jobs on this machine.

    Parameters
    ----------
    make
        Makes a worker: a function from a job to its result. It is called once in every worker process, so it must be
        picklable where there is more than one.
    workers
        How many; 1 runs everything in this process.

    Examples
    --------
    >>> engine = LocalEngine(lambda: abs, workers=1)
    >>> [reply.value for reply in engine.work([-1, 2])]
    [1, 2]
    >>> engine.close()
    """

    def __init__(self, make: Callable[[], Work], workers: int = 1) -> None:
        if workers < 1:
            raise RunError(f"an engine has at least 1 worker, not {workers}")
        self._make = make
        self._packed: _Parcel | None = None
        self._work: Work | None = None
        self._crew: list[_Worker] = []
        self._workers = workers
        self._listening = False

    def share(self, value: Any) -> Any:
        """Put a value into shared memory, once for all workers; one worker alone takes it as it is.

        >>> engine = LocalEngine(lambda: abs)
        >>> engine.share(3)
        3
        """
        return value if self._workers == 1 else _Parcel(value)

    def work(self, jobs: Sequence[Any], sizes: Sequence[float] | None = None) -> Iterator[Reply | Failure]:
        """Run jobs and yield what becomes of each as it comes; one list of jobs at a time."""
        if self._workers == 1:
            return self._here(jobs)
        return self._there(jobs, sizes)

    def _here(self, jobs: Sequence[Any]) -> Iterator[Reply | Failure]:
        if self._work is None:
            self._work = self._make()
        for index, job in enumerate(jobs):
            yield attempt(self._work, index, job)

    def _there(self, jobs: Sequence[Any], sizes: Sequence[float] | None) -> Iterator[Reply | Failure]:
        if self._listening:
            raise RunError("an engine does one list of jobs at a time: read all replies to the first, or close it")
        self._listening = True
        order = range(len(jobs)) if sizes is None else sorted(range(len(jobs)), key=lambda k: -sizes[k])
        waiting = deque((index, 1) for index in order)
        busy: dict[_Worker, tuple[int, int]] = {}
        results: deque[Reply | Failure] = deque()
        try:
            while len(self._crew) < min(self._workers, len(jobs)):
                self._crew.append(self._worker())
            while waiting or busy or results:
                for worker in [worker for worker in self._crew if worker not in busy][: len(waiting)]:
                    index, tries = waiting.popleft()
                    try:
                        parcel = _Parcel(jobs[index])
                    except Exception as problem:  # whatever cannot be sent is this job's failure alone
                        results.append(failure(index, problem))
                        continue
                    taken = worker if worker.send(index, parcel) else self._replaced(worker, index, parcel)
                    busy[taken] = index, tries
                    del parcel  # so that what it shares can go as soon as nobody needs it
                while results:  # the workers are at work again while the caller looks at these
                    yield results.popleft()
                if not busy:
                    continue
                ready = wait([worker.pipe for worker in busy] + [worker.process.sentinel for worker in busy])
                for worker in [worker for worker in busy if worker.pipe in ready or worker.process.sentinel in ready]:
                    index, tries = busy.pop(worker)
                    result = worker.receive()
                    if result is not None:
                        results.append(result)
                        del result
                        continue
                    code = worker.process.exitcode
                    self._replaced(worker)
                    if tries < TRIES:
                        waiting.appendleft((index, tries + 1))  # at once: others may have to wait for it
                    else:
                        results.append(Failure(index, f"its worker ended {TRIES} times (exit code {code})"))
        finally:
            self._listening = False
            for worker in busy:  # the caller has stopped listening: what they still do is of no use
                worker.stop()
                if worker in self._crew:
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

    def _replaced(self, worker: _Worker, index: int = 0, parcel: _Parcel | None = None) -> _Worker:
        """Put a new worker in the place of one that died, and give it what the old one did not take."""
        worker.stop()
        new = self._crew[self._crew.index(worker)] = self._worker()
        if parcel is not None:
            new.send(index, parcel)
        return new

    def close(self) -> None:
        """Stop the workers."""
        for worker in self._crew:
            worker.stop()
        self._crew.clear()
        self._packed = None
        self._work = None


class _Worker:
    """A worker process and the pipe to it."""

    def __init__(self, make: _Parcel) -> None:
        context = multiprocessing.get_context("spawn")  # a fork of a process with PyTorch's threads may hang
        self.pipe, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=_serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()
        self.send(0, make)

    def send(self, index: int, parcel: _Parcel) -> bool:
        try:
            _send(self.pipe, index, parcel)
        except OSError:
            return False
        return True

    def receive(self) -> Reply | Failure | None:
        """What the worker says, or None where it is gone."""
        try:
            _, opened = _receive(self.pipe)
        except (EOFError, OSError):
            self.process.join(5)
            return None
        answer: Reply | Failure = opened()
        return answer

    def stop(self) -> None:
        self.pipe.close()
        if self.process.is_alive():
            self.process.terminate()
            self.process.join(5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def _serve(pipe: Connection) -> None:
    """Work until the pipe closes: the whole life of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that waits for us
    torch.set_num_threads(1)
    keep_freed_memory()
    own_this_process()
    work: Work | None = None
    make: Callable[[], Any] | None = None
    while True:
        try:
            index, opened = _receive(pipe)
        except (EOFError, OSError):
            return
        if make is None:
            make = opened
            continue
        try:
            if work is None:
                work = make()()
            answer = _Parcel(attempt(work, index, opened()))
        except Exception as problem:  # whatever it is, the caller must hear of it
            answer = _Parcel(failure(index, problem))
        _send(pipe, index, answer)
        del opened, answer  # what they hold is not needed while we wait


class _Parcel(Shared):
    """A value ready for the pipe: bytes where it is small, or else a block, of which only the descriptor travels."""

    def __init__(self, value: Any) -> None:
        message = dump(value)
        parts = [memoryview(message.body), *message.arrays]
        self.shared = [parcel for parcel in message.shared if isinstance(parcel, _Parcel)]
        self.block = Block.of(parts) if TRAVEL and sum(part.nbytes for part in parts) >= _LARGE else None
        self.parts = [bytearray(part) if self.block is None else part.nbytes for part in parts]


def _send(pipe: Connection, index: int, parcel: _Parcel) -> None:
    parcels = [parcel, *parcel.shared]
    pipe.send_bytes(pickle.dumps((index, [(one.parts, one.block is not None) for one in parcels])))
    for one in parcels:
        if one.block is not None:
            send_handle(pipe, one.block.descriptor, 0)


def _receive(pipe: Connection) -> tuple[int, Callable[[], Any]]:
    """The index of the next parcel, and a function that opens it: what is inside may be more than can be read here."""
    index, heads = pickle.loads(pipe.recv_bytes())
    parcels = [(parts, Block(recv_handle(pipe)) if apart else None) for parts, apart in heads]

    def opened() -> Any:
        (body, *arrays), *shared = [parts if block is None else block.read(parts) for parts, block in parcels]
        return load(body, arrays, [load(body, arrays) for body, *arrays in shared])

    return index, opened
