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
from numpy.typing import NDArray

from nestling.engines.engine import Failure, Reply, Work
from nestling.errors import RunError

_TRIES = 2
_HEAD = 8  # bytes before a pickled value


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
        self._work: Work | None = None
        self._crew: list[_Worker] = []
        self._workers = workers
        self._listening = False

    def work(self, jobs: Sequence[Any], sizes: Sequence[float] | None = None) -> Iterator[Reply | Failure]:
        """Run jobs and yield what becomes of each as it comes; one list of jobs at a time."""
        if self._workers == 1:
            return self._here(jobs)
        return self._there(jobs, sizes)

    def _here(self, jobs: Sequence[Any]) -> Iterator[Reply | Failure]:
        if self._work is None:
            self._work = self._make()
        for index, job in enumerate(jobs):
            yield _attempt(self._work, index, job)

    def _there(self, jobs: Sequence[Any], sizes: Sequence[float] | None) -> Iterator[Reply | Failure]:
        if self._listening:
            raise RunError("an engine does one list of jobs at a time: read all replies to the first, or close it")
        self._listening = True
        order = range(len(jobs)) if sizes is None else sorted(range(len(jobs)), key=lambda k: -sizes[k])
        waiting = deque((index, 1) for index in order)
        while len(self._crew) < min(self._workers, len(jobs)):
            self._crew.append(_Worker(self._make))
        busy: dict[_Worker, tuple[int, int]] = {}
        try:
            while waiting or busy:
                for worker in [worker for worker in self._crew if worker not in busy][: len(waiting)]:
                    index, tries = waiting.popleft()
                    try:
                        message = _dumps(jobs[index], index)
                    except Exception as problem:  # whatever cannot be sent is this job's failure alone
                        yield _failure(index, problem)
                        continue
                    busy[worker if worker.send(message) else self._replaced(worker, message)] = index, tries
                if not busy:
                    continue
                ready = wait([worker.pipe for worker in busy] + [worker.process.sentinel for worker in busy])
                for worker in [worker for worker in busy if worker.pipe in ready or worker.process.sentinel in ready]:
                    index, tries = busy.pop(worker)
                    result = worker.receive()
                    if result is not None:
                        yield result
                        continue
                    code = worker.process.exitcode
                    self._replaced(worker)
                    if tries < _TRIES:
                        waiting.append((index, tries + 1))
                    else:
                        yield Failure(index, f"its worker ended {_TRIES} times (exit code {code})")
        finally:
            self._listening = False
            for worker in busy:  # the caller has stopped listening: what they still do is of no use
                worker.stop()
                if worker in self._crew:
                    self._crew.remove(worker)

    def _replaced(self, worker: _Worker, message: memoryview | None = None) -> _Worker:
        """Put a new worker in the place of one that died, and give it what the old one did not take."""
        worker.stop()
        new = self._crew[self._crew.index(worker)] = _Worker(self._make)
        if message is not None:
            new.send(message)
        return new

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
        self.process: BaseProcess = context.Process(target=_serve, args=(theirs, bytes(_dumps(make))), daemon=True)
        self.process.start()
        theirs.close()

    def send(self, message: memoryview) -> bool:
        try:
            self.pipe.send_bytes(message)
        except OSError:
            return False
        return True

    def receive(self) -> Reply | Failure | None:
        """What the worker says, or None where it is gone."""
        try:
            _, result = _loads(self.pipe.recv_bytes())
        except (EOFError, OSError):
            self.process.join(5)
            return None
        answer: Reply | Failure = result
        return answer

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
            message = pipe.recv_bytes()
        except (EOFError, OSError):
            return
        index = int.from_bytes(message[:_HEAD], "little")
        try:
            _, job = _loads(message)
            if work is None:
                _, made = _loads(make)
                work = made()
            answer = _dumps(_attempt(work, index, job))
        except Exception as problem:  # whatever it is, the caller must hear of it
            answer = _dumps(_failure(index, problem))
        pipe.send_bytes(answer)


def _attempt(work: Work, index: int, job: Any) -> Reply | Failure:
    try:
        return Reply(index, work(job))
    except Exception as problem:  # one bad job must not end the others; the caller judges
        return _failure(index, problem)


def _failure(index: int, problem: Exception) -> Failure:
    """A failure with its error, or with one that says the same where that cannot travel."""
    reason = f"{type(problem).__name__}: {problem}"
    try:
        pickle.loads(pickle.dumps(problem))
    except Exception:  # an error may hold anything, and take anything to be made again
        problem = RunError(reason)
    return Failure(index, reason, problem)


class _Pickler(pickle.Pickler):
    """Pickles tensors as arrays: several times quicker than PyTorch's own way, which is made for files."""

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is torch.Tensor and obj.layout == torch.strided and obj.is_cpu and not obj.requires_grad:
            plain = obj.resolve_conj().resolve_neg()
            try:
                return torch.from_numpy, (plain.numpy(),)
            except TypeError:  # NumPy has no such dtype: bfloat16, float8
                return _from_bytes, (
                    plain.contiguous().reshape(-1).view(torch.uint8).numpy(),
                    obj.dtype,
                    tuple(obj.shape),
                )
        return NotImplemented


def _from_bytes(data: NDArray[Any], dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.from_numpy(data).view(dtype).view(shape)


def _dumps(value: Any, index: int = 0) -> memoryview:
    """A message: a number that can be read whatever follows, and a pickled value."""
    file = io.BytesIO()
    file.write(index.to_bytes(_HEAD, "little"))
    _Pickler(file, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    return file.getbuffer()


def _loads(message: bytes) -> tuple[int, Any]:
    return int.from_bytes(message[:_HEAD], "little"), pickle.loads(memoryview(message)[_HEAD:])
