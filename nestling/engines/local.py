"""The local engine: one worker in this process, or several processes of one thread each.

Messages are pickled between processes that we started ourselves, never taken from outside; tensors go as plain arrays.
A worker that dies is replaced and its job given out once more, then reported as a failure.
"""

from __future__ import annotations

import io
import multiprocessing
import pickle
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from nestling.engines.engine import Failure, Reply, Work

_TRIES = 2


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
        self._make = make
        self._work: Work | None = None
        self._crew: list[_Worker] = []
        self._workers = workers

    def work(self, jobs: Sequence[Any], sizes: Sequence[float] | None = None) -> Iterator[Reply | Failure]:
        """Run jobs and yield what becomes of each as it comes."""
        if self._workers == 1:
            return self._here(jobs)
        return self._there(jobs, sizes)

    def _here(self, jobs: Sequence[Any]) -> Iterator[Reply | Failure]:
        if self._work is None:
            self._work = self._make()
        for index, job in enumerate(jobs):
            yield _attempt(self._work, index, job)

    def _there(self, jobs: Sequence[Any], sizes: Sequence[float] | None) -> Iterator[Reply | Failure]:
        order = range(len(jobs)) if sizes is None else sorted(range(len(jobs)), key=lambda k: -sizes[k])
        waiting = deque((index, 1) for index in order)
        while len(self._crew) < min(self._workers, len(jobs)):
            self._crew.append(_Worker(self._make))
        busy: dict[_Worker, tuple[int, int]] = {}
        try:
            while waiting or busy:
                for place, worker in enumerate(self._crew):
                    if waiting and worker not in busy:
                        index, tries = waiting.popleft()
                        if not worker.send((index, jobs[index])):  # it died while idle
                            worker.stop()
                            worker = self._crew[place] = _Worker(self._make)  # noqa: PLW2901
                            worker.send((index, jobs[index]))
                        busy[worker] = index, tries
                ready = wait([worker.pipe for worker in busy] + [worker.process.sentinel for worker in busy])
                for worker in [worker for worker in busy if worker.pipe in ready or worker.process.sentinel in ready]:
                    index, tries = busy.pop(worker)
                    result = worker.receive()
                    if result is not None:
                        yield result
                        continue
                    code = worker.process.exitcode
                    worker.stop()
                    self._crew[self._crew.index(worker)] = _Worker(self._make)
                    if tries < _TRIES:
                        waiting.append((index, tries + 1))
                    else:
                        yield Failure(index, f"its worker ended {_TRIES} times (exit code {code})")
        finally:
            for worker in busy:  # the caller has stopped listening: what they still do is of no use
                worker.stop()
                self._crew.remove(worker)

    def close(self) -> None:
        """Stop the workers."""
        for worker in self._crew:
            worker.stop()
        self._crew.clear()
        self._work = None


class _Worker:
    """A worker process and the pipe to it."""

    def __init__(self, make: Callable[[], Work]) -> None:
        context = multiprocessing.get_context("spawn")  # a fork of a process with PyTorch's threads may hang
        self.pipe, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=_serve, args=(theirs, _dumps(make)), daemon=True)
        self.process.start()
        theirs.close()

    def send(self, message: Any) -> bool:
        try:
            self.pipe.send_bytes(_dumps(message))
        except OSError:
            return False
        return True

    def receive(self) -> Reply | Failure | None:
        """What the worker says, or None where it is gone."""
        try:
            result: Reply | Failure = pickle.loads(self.pipe.recv_bytes())
        except (EOFError, OSError):
            self.process.join(5)
            return None
        return result

    def stop(self) -> None:
        self.pipe.close()
        if self.process.is_alive():
            self.process.terminate()
            self.process.join(5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def _serve(pipe: Connection, make: bytes) -> None:
    """Work until the pipe closes: the whole life of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that waits for us
    torch.set_num_threads(1)
    work: Work | None = None
    while True:
        try:
            index, job = pickle.loads(pipe.recv_bytes())
        except (EOFError, OSError):
            return
        try:
            if work is None:
                work = pickle.loads(make)()
            result = _attempt(work, index, job)
        except Exception as problem:  # whatever it is, the caller must hear of it
            result = Failure(index, f"{type(problem).__name__}: {problem}", problem)
        pipe.send_bytes(_dumps(result))


def _attempt(work: Work, index: int, job: Any) -> Reply | Failure:
    try:
        return Reply(index, work(job))
    except Exception as problem:  # one bad job must not end the others; the caller judges
        return Failure(index, f"{type(problem).__name__}: {problem}", problem)


class _Pickler(pickle.Pickler):
    """Pickles tensors as arrays: several times quicker than PyTorch's own way, which is made for files."""

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is torch.Tensor and obj.layout == torch.strided and obj.is_cpu and not obj.requires_grad:
            if obj.dtype != torch.bfloat16 and not obj.is_conj() and not obj.is_neg():
                return torch.from_numpy, (obj.numpy(),)
        return NotImplemented


def _dumps(value: Any) -> bytes:
    file = io.BytesIO()
    _Pickler(file, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    return file.getvalue()
