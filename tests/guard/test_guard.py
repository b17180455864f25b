"""The guard: no kernel that training uses writes outside of its memory, on any instruction set that can be tried here.

Children train every net, narrow down to one channel, and compute small convolutions of every shape, with malloc checks
and one of the instruction sets that this processor can pretend to have. They end with a signal where memory was
corrupted, and with a sentence where a result is not that of double precision. Taking out any remedy of
`nestling.safe_kernels` makes them fail on a processor that has the fault.
"""

import ctypes
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
LIMIT = 600  # seconds, should something hang
MALLOC = "libc_malloc_debug.so.0"
FLAGS = {"AVX512_CORE": "avx512bw", "AVX2": "avx2", "AVX": "avx", "SSE41": "sse4_1"}


def why_not(isa):
    """Say why an instruction set cannot be tried here; nothing where it can."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return f"{isa} is of x86 processors, and this is {platform.machine()}"
    try:
        flags = Path("/proc/cpuinfo").read_text().split()
    except OSError:
        return "this system does not tell its processor's instruction sets"
    return "" if FLAGS[isa] in flags else f"this processor has no {isa}"


def has_malloc_checks():
    try:
        ctypes.CDLL(MALLOC)
    except OSError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.timeout(LIMIT + 60)
@pytest.mark.parametrize("child", ["guard_steps.py", "guard_shapes.py"])
@pytest.mark.parametrize("isa", FLAGS)
def test_no_kernel_writes_where_it_must_not(isa, child):
    if why_not(isa):
        pytest.skip(why_not(isa))
    if not has_malloc_checks():
        pytest.skip(f"this system has no {MALLOC}, which finds what was written outside of memory")
    highest = isa == next(one for one in FLAGS if not why_not(one))
    cap = {} if highest else {"ONEDNN_MAX_CPU_ISA": isa}  # without a cap, whatever is newer is used, too
    checks = {"LD_PRELOAD": MALLOC, "GLIBC_TUNABLES": "glibc.malloc.check=3", "OMP_NUM_THREADS": "1"}
    paths = os.pathsep.join(path for path in sys.path if path)
    usual = {name: value for name, value in os.environ.items() if name != "ONEDNN_MAX_CPU_ISA"}
    ended = subprocess.run(
        [sys.executable, str(HERE / child)],
        env=usual | cap | checks | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert ended.returncode == 0, f"exit {ended.returncode} after:\n{ended.stdout[-1500:]}{ended.stderr[-1500:]}"
    assert "clean" in ended.stdout
