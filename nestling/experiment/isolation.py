"""Run with PyTorch's default settings, so that the caller's settings do not change the numbers of a run.

Some settings belong to a thread (autocast, gradient and inference mode): they are set for ours and restored. Others
belong to the process (threads, default dtype, anomaly detection, deterministic kernels, precision of products): they
are set when the first run begins and restored when the last one ends.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from nestling.errors import ConfigError, RunError
from nestling.events import report


@contextmanager
def clean_torch(threads: int, device: str) -> Iterator[None]:
    """Use PyTorch's default settings and so many threads in this context; restore the caller's settings afterwards.

    Parameters
    ----------
    threads
        The threads that an operation on the CPU may use. More than one changes the last bits of results.
    device
        The device of the run's models. PyTorch's default device must be this one or the CPU.

    Examples
    --------
    >>> with torch.inference_mode(), clean_torch(1, "cpu"):
    ...     torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_num_threads()
    (True, False, 1)
    """
    default = torch.get_default_device()
    if default.type not in ("cpu", torch.device(device).type):
        other = f", or set device={default.type}" if default.type in ("cuda", "mps") else ""
        raise ConfigError(
            f"PyTorch's default device is {default}, but this run computes on {device}: call "
            f"torch.set_default_device({device!r}) before{other}"
        )
    with ExitStack() as stack:
        stack.enter_context(_PROCESS.held(threads))
        if default.type != "cpu":  # our own tensors are on the CPU; the context makes every operation slower
            stack.enter_context(torch.device("cpu"))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for kind in {"cpu", torch.device(device).type}:
            stack.enter_context(torch.autocast(kind, enabled=False))
        yield


class _Switch:
    """A setting of PyTorch that belongs to the process: how to read and write it, and our value."""

    def __init__(self, name: str, read: Callable[[], Any], write: Callable[[Any], Any], ours: Any) -> None:
        self.name, self._read, self._write, self._ours = name, read, write, ours
        self._before: Any = None

    def apply(self) -> None:
        self._before = self._read()
        if self._before != self._ours:
            report("caller's setting", f"{self.name} is {self._ours} for this run, not {self._before}", logging.INFO)
            self._write(self._ours)

    def restore(self) -> None:
        if self._read() != self._before:
            self._write(self._before)


def _deterministic() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _set_deterministic(value: tuple[bool, bool]) -> None:
    torch.use_deterministic_algorithms(value[0], warn_only=value[1])


def _anomaly() -> tuple[bool, bool]:
    return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()


def _set_anomaly(value: tuple[bool, bool]) -> None:
    torch.set_anomaly_enabled(*value)


class _Process:
    """The settings of the process, which have our values while at least one run needs them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs = 0
        self._threads = 0
        self._threads_before = 0
        self._switches = [
            _Switch("default dtype", torch.get_default_dtype, torch.set_default_dtype, torch.float32),
            _Switch("anomaly detection", _anomaly, _set_anomaly, (False, True)),
            _Switch("use of deterministic algorithms", _deterministic, _set_deterministic, (False, False)),
            _Switch(
                "precision of matrix products",
                torch.get_float32_matmul_precision,
                torch.set_float32_matmul_precision,
                "highest",
            ),
        ]

    @contextmanager
    def held(self, threads: int) -> Iterator[None]:
        self._take(threads)
        try:
            yield
        finally:
            self._release()

    def _take(self, threads: int) -> None:
        with self._lock:
            if self._runs and threads != self._threads:
                raise RunError(
                    f"another run in this process has threads={self._threads}, which is a setting of the whole "
                    f"process: threads={threads} must wait for its end, or run in another process"
                )
            if not self._runs:
                for switch in self._switches:
                    switch.apply()
                self._threads, self._threads_before = threads, torch.get_num_threads()
                if self._threads_before != threads:
                    report(
                        "threads",
                        f"PyTorch computes with {threads} of {self._threads_before} threads (setting threads)",
                        logging.INFO,
                    )
            torch.set_num_threads(threads)  # in every thread: part of this setting belongs to the calling thread
            self._runs += 1

    def _release(self) -> None:
        with self._lock:
            self._runs -= 1
            if not self._runs:
                torch.set_num_threads(self._threads_before)
                for switch in self._switches:
                    switch.restore()


_PROCESS = _Process()
