"""The processor and the PyTorch that compute a run: the same seed gives the same bytes where both are of one kind."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import torch

_ISA_CAPS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY")  # the environment's limits
_CPU_INFO = Path("/proc/cpuinfo")


def processor() -> dict[str, str]:
    """Return what decides the last bits of figures on this machine.

    Returns
    -------
    dict
        ``model``: the processor's name. ``architecture``: such as ``x86_64``. ``capability``: the instruction set that
        PyTorch's own kernels use, such as ``AVX2``. ``isa_cap``: limits that the environment sets to instruction sets,
        as ``NAME=VALUE`` joined by spaces, mostly empty. ``torch``: the version of PyTorch. Runs resumed where any of
        these differs may differ in last bits.

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
        "torch": torch.__version__,
    }


def cpu_name(path: Path = _CPU_INFO) -> str:
    """Return the name of the processor as its maker gives it, or what the platform knows where that is not told.

    >>> bool(cpu_name())
    True
    """
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # not Linux
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Hardware")))
    return next(filter(None, names), "") or platform.processor() or platform.machine() or "unknown"
