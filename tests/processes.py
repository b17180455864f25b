"""Child processes for tests: signals as in a terminal, and a limit on every wait.

Started in the background (``make test &``, ``nohup``, many CI runners), the tests inherit SIGINT or SIGHUP as
ignored, and every child would inherit it from them: a child that is interrupted would never end.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any

LIMIT = 200  # seconds; far more than any child needs on a busy machine, and less than pytest-timeout gives a test

# Runs in the child and then becomes the program, which keeps both the signals' default actions and the timer.
# Unlike `preexec_fn`, that is safe whatever threads the tests have.
_BEFORE = """
import os, signal, sys
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
    signal.signal(number, signal.SIG_DFL)
signal.setitimer(signal.ITIMER_REAL, float(sys.argv[1]))
os.execvp(sys.argv[2], sys.argv[2:])
"""


def start(args: Sequence[str | PathLike[str]], *, limit: float = LIMIT, **options: Any) -> subprocess.Popen:
    """Start a program that SIGINT, SIGTERM and SIGHUP reach, and that ends by SIGALRM after `limit` seconds.

    `options` are those of `subprocess.Popen`. As the program ends within the limit, so does whoever waits for it or
    reads from it; ``with start(…) as process`` closes its pipes.
    """
    return subprocess.Popen([sys.executable, "-I", "-S", "-c", _BEFORE, str(limit), *args], **options)


def call(
    args: Sequence[str | PathLike[str]], *, limit: float = LIMIT, check: bool = False, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a program like `start` does, and return its exit code and what it wrote on stdout and stderr."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "encoding": "utf-8"} | options
    with start(args, limit=limit, **options) as process:
        out, err = process.communicate()
    if check:
        assert process.returncode == 0, err
    return subprocess.CompletedProcess(args, process.returncode, out, err)


def wait_until(condition: Callable[[], object], limit: float = LIMIT) -> None:
    """Wait for something to become true; raise AssertionError after `limit` seconds."""
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end, f"still waiting after {limit} seconds"
        time.sleep(0.02)
