"""Keep freed memory in the process instead of returning it to the system."""

from __future__ import annotations

import ctypes
import os

_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1  # the constants of <malloc.h>
_BLOCK = 2**28  # blocks of up to so many bytes are kept
_SPARE = 2**30  # the maximum number of free bytes at the end of the heap


def keep_freed_memory() -> bool:
    """Let this process keep large blocks that are freed, and return whether it does.

    A training step allocates the same large blocks as the one before. By default the GNU C library returns them to the
    system in between, which must then clear them page by page: 5 % of a step and more. With other C libraries, or if
    the environment configures malloc, nothing is changed. It is for our own processes: the command line, the
    engines' workers and the ServerApp call it.

    >>> keep_freed_memory() in (True, False)
    True
    """
    if {"MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES", "LD_PRELOAD"} & os.environ.keys():
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _BLOCK)) and bool(mallopt(_TRIM_THRESHOLD, _SPARE))
