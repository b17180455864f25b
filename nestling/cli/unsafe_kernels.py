"""PyTorch kernels that are wrong on some processors, each tried in its own process, as it may crash.

docs/architecture.md describes them, and how Nestling avoids them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass

_TIMEOUT = 120.0  # seconds, for a process that imports PyTorch and computes for a moment
_CHECK_MEMORY = {"LD_PRELOAD": "libc_malloc_debug.so.0", "GLIBC_TUNABLES": "glibc.malloc.check=3"}


@dataclass(frozen=True)
class Kernel:
    """A kernel: its name, a program that crashes or prints ``wrong`` on affected machines, and the harm it does."""

    name: str
    program: str
    harm: str
    checks_memory: bool = False


KERNELS = (
    Kernel(
        "1×1 convolution with stride, backward (oneDNN #6035)",
        """
import torch
for size in [8] * 100 + [56] * 5:  # kernels for AVX2 are at fault with small images, those for AVX-512 with large ones
    x = torch.randn(20, 6, size, size).contiguous(memory_format=torch.channels_last)
    w = torch.randn(6, 6, 1, 1).contiguous(memory_format=torch.channels_last)
    y = torch.nn.functional.conv2d(x, w, None, 2, 0)
    torch.ops.aten.convolution_backward(
        torch.randn_like(y), x, w, None, (2, 2), (0, 0), (1, 1), False, (0, 0), 1, [False, True, False]
    )
""",
        "corrupts memory",
        checks_memory=True,
    ),
    Kernel(
        "convolution whose outputs see padding alone (oneDNN brg_conv_fwd)",
        """
import torch
for channels in (3, 8, 17):
    for height in (1, 4):
        x = torch.randn(2, channels, height, 1).contiguous(memory_format=torch.channels_last)
        w = torch.randn(channels, channels, 1, 1).contiguous(memory_format=torch.channels_last)
        torch.nn.functional.conv2d(x, w, torch.randn(channels), 2, 1)
""",
        "crashes",
    ),
    Kernel(
        "instance norm of one sample, channels-last gradient (PyTorch)",
        """
import torch
x = torch.randn(1, 4, 5, 5, dtype=torch.float64, requires_grad=True)
y = torch.nn.functional.instance_norm(x)
first = torch.randn_like(y)
last = first.contiguous(memory_format=torch.channels_last)
one, other = (torch.autograd.grad(y, x, gradient, retain_graph=True)[0] for gradient in (first, last))
print("right" if torch.allclose(one, other) else "wrong")
""",
        "gives a wrong gradient",
    ),
)


def verdict(kernel: Kernel) -> tuple[bool | None, str]:
    """Return whether a kernel is safe here (None if that is unknown), and a sentence about it."""
    env = os.environ | {"OMP_NUM_THREADS": "1"} | (_CHECK_MEMORY if kernel.checks_memory else {})
    command = [sys.executable, "-c", kernel.program]
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired) as problem:
        return None, f"could not be tried: {problem}"
    if done.returncode < 0 or "wrong" in done.stdout:
        return False, f"{kernel.harm} on this machine; Nestling avoids it"
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return None, f"could not be tried: {reason}"
    if kernel.checks_memory and (sys.platform != "linux" or "cannot be preloaded" in done.stderr):
        return None, "not known: this system has no glibc that checks memory"
    return True, "clean on this machine"
