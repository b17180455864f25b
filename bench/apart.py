"""Measurements in programs of their own, which tell one JSON value, and the memory of a program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from nestling.errors import RunError


def apart(measure: Callable[..., Any], *given: Any) -> Any:
    """Return what a function of some module returns in a program of its own, with one thread.

    The program gives back the memory that it frees, so that its peak is that of what it holds.
    """
    call = f"from {measure.__module__} import {measure.__qualname__} as measure; print(json.dumps(measure(*{given!r})))"
    command = [sys.executable, "-c", f"import json, torch; torch.set_num_threads(1); {call}"]
    steady = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=steady)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise RunError(f"measuring {measure.__qualname__}{given!r} failed: {last}")
    return json.loads(done.stdout)


def most_memory(process: int | str = "self") -> int:
    """Return the most memory (KiB) that a program had; `getrusage` would count the program that started it, too."""
    return _status(process, "VmHWM:")


def memory(process: int | str = "self") -> int:
    """Return the memory (KiB) that a program has."""
    return _status(process, "VmRSS:")


def _status(process: int | str, what: str) -> int:
    status = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    return int(status.partition(what)[2].split()[0])


def machine() -> dict[str, Any]:
    """Return what figures depend on: cores, processor, versions, and how busy the machine is besides."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "processor": _processor(),
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        "load": round(os.getloadavg()[0], 1),
    }


def _processor() -> str:
    status = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    return status.partition("model name")[2].partition("\n")[0].strip("\t :") or "unknown"
