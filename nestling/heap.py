"""Memory that is freed and soon asked for again."""

from __future__ import annotations

import ctypes
import os

_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1  # as <malloc.h> numbers them
_BLOCK = 2**28  # bytes of a block up to which it is kept
_SPARE = 2**30  # bytes that a process keeps at most at the end of its heap


def keep_freed_memory() -> bool:
    """Let this process keep large blocks that are freed, and return whether it will.

    A training step asks for the same large blocks as the one before. By default the GNU C library gives them back to
    the system in between, which then has to clear them page by page: a twentieth of a step and more. Elsewhere, and
    where the environment says how memory is to be treated, nothing is changed. It is for processes of our own: the
    command line and the engines' workers call it.

    >>> keep_freed_memory() in (True, False)
    True
    """
    told = {"MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES", "LD_PRELOAD"}
    if told & os.environ.keys():
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _BLOCK)) and bool(mallopt(_TRIM_THRESHOLD, _SPARE))
