"""Describe this machine: its processor, its memory and PyTorch."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import torch

_ISA_CAPS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY")  # the environment's limits
_CPU_INFO = Path("/proc/cpuinfo")


def processor() -> dict[str, str]:
    """Return the properties of this machine that determine the last bits of results.

    Returns
    -------
    dict
        ``model``: the processor's name. ``architecture``: such as ``x86_64``. ``capability``: the instruction set that
        PyTorch's own kernels use, such as ``AVX2``. ``isa_cap``: the environment's limits of instruction sets, as
        ``NAME=VALUE`` joined by spaces, usually empty. ``torch``: the version of PyTorch. If any of these differs when
        a run is resumed, last bits may differ.

    Examples
    --------
    >>> sorted(processor())
    ['architecture', 'capability', 'isa_cap', 'model', 'torch']
    """
    return {
        "model": cpu_name(),
        "architecture": platform.machine(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "isa_cap": " ".join(f"{name}={os.environ[name]}" for name in _ISA_CAPS if os.environ.get(name)),
        "torch": str(torch.__version__),  # it is of a subclass of str
    }


def cpu_name(path: Path = _CPU_INFO) -> str:
    """Return the processor's name from `path`, or else the platform's name for it.

    >>> bool(cpu_name())
    True
    """
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # not Linux
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Hardware")))
    return next(filter(None, names), "") or platform.processor() or platform.machine() or "unknown"


def memory() -> dict[str, int | None]:
    """Return the bytes of total and available memory; a container may have less than its machine.

    >>> sorted(memory())[:2]
    ['available', ...]
    """
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return {"total": None, "available": None}
    table = {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines)}
    memory: dict[str, int | None] = {"total": table.get("MemTotal"), "available": table.get("MemAvailable")}
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        limit = "max"
    return memory | ({"limit of this container": int(limit)} if limit.isdigit() else {})
