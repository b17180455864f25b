"""Work for the tests of engines, in a module of its own: workers are other processes and import it."""

import os
import signal
import threading
import time
from pathlib import Path

import torch

from nestling.events import report


class Picky(Exception):
    """An error that pickle writes but cannot read: it is made from two things and keeps one."""

    def __init__(self, what, where):
        super().__init__(f"{what} in {where}")


class Unreadable:
    """A job that cannot be read where it arrives."""

    def __reduce__(self):
        return _never, ()


def _never():
    raise ValueError("this job cannot be read")


def echo(value):
    return value


def double(tensors):
    return [tensor * 2 for tensor in tensors]


def pid():
    return os.getpid()


def pid_with(value):
    return os.getpid()


def spoil(tensor):
    """Write into what was given."""
    return float(tensor.add_(1).sum())


def blocks():
    """How many pieces of shared memory this process has before it."""
    return Path("/proc/self/maps").read_text().count("memfd:nestling")


def threads():
    return torch.get_num_threads()


def sleep(seconds, value=None):
    time.sleep(seconds)
    return value


def note(path, value):
    """Write down that this job was begun, and return the value."""
    with Path(path).open("a") as file:
        file.write(f"{value}\n")
    return value


def die(path, times):
    """Kill the worker the first few times, counted in a file."""
    note(path, "tried")
    if len(Path(path).read_text().splitlines()) <= times:
        os.kill(os.getpid(), signal.SIGKILL)
    return "alive"


def die_in_workers(path, main):
    """Kill every process but the main one."""
    note(path, "here" if os.getpid() == main else "tried")
    if os.getpid() != main:
        os.kill(os.getpid(), signal.SIGKILL)
    return "alive"


def die_in_workers_with(path, main, tensor):
    die_in_workers(path, main)
    return float(tensor.sum())


def stop(path, times):
    """Stop this process, as SIGSTOP does, the first few times."""
    note(path, os.getpid())
    if len(Path(path).read_text().splitlines()) <= times:
        os.kill(os.getpid(), signal.SIGSTOP)
    return "alive"


def starve(path, times, kind):
    """Find no memory the first few times."""
    note(path, os.getpid())
    if len(Path(path).read_text().splitlines()) <= times:
        raise (
            MemoryError
            if kind == "python"
            else RuntimeError(
                "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: "
                "you tried to allocate 4000000000000 bytes. Error code 12 (Cannot allocate memory)"
            )
        )
    return "fed"


def tell(kind, message):
    report(kind, message)
    return message


def tell_and_fail(kind, message):
    report(kind, message)
    raise KeyError(message)


def die_then_sum(path, tensor):
    die(path, 1)
    return float(tensor.sum())


def wrong(kind):
    match kind:
        case "plain":
            raise KeyError("no such thing")
        case "picky":
            raise Picky("a fault", "here")
        case "lock":
            problem = RuntimeError("it holds a lock")
            problem.lock = threading.Lock()
            raise problem


def unsendable():
    return threading.Lock()


def do(job):
    what, *arguments = job
    return globals()[what](*arguments)


def make():
    return do


def make_counting():
    """A worker that remembers how many jobs it has done."""
    done = []

    def work(job):
        done.append(job)
        return len(done)

    return work


def make_telling():
    report("fallback", "made without a kernel")
    return do


def make_nothing():
    raise RuntimeError("the data is not there")
