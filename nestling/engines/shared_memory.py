"""Blocks of memory that several processes read; the kernel frees them when the last process ends.

A block is a file without a name. Its descriptor is sent through a Unix socket, so there is nothing to clean up, even
after Ctrl-C or a kill. It counts as ordinary memory, not against the size of /dev/shm, which containers make small.
"""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Sequence
from itertools import accumulate

import torch

from nestling.errors import RunFailed

TRAVEL = hasattr(socket, "SCM_RIGHTS")  # whether descriptors can be sent to other processes: not on Windows
_ALIGN = 64  # the alignment of arrays in bytes


class SharedMemoryFull(RunFailed):
    """There was not enough shared memory."""


class Block:
    """Bytes that are written once and can be read by every process that has the descriptor.

    Parameters
    ----------
    descriptor
        The file's descriptor; the block owns it from now on.

    Examples
    --------
    >>> block = Block.of([memoryview(b"one"), memoryview(b"two")])
    >>> [bytes(part) for part in block.read([3, 3])]
    [b'one', b'two']
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    @classmethod
    def of(cls, parts: Sequence[memoryview]) -> Block:
        """Write parts one after the other into a new block."""
        size = sum(_padded(part.nbytes) for part in parts)
        try:
            block = cls(_new_file())
            for part in parts:
                _write(block.descriptor, part)
                _write(block.descriptor, memoryview(bytes(_padded(part.nbytes) - part.nbytes)))
        except OSError as problem:
            raise SharedMemoryFull(
                f"{size / 2**20:.1f} MB cannot be put into shared memory ({problem.strerror}): "
                "use fewer workers, or a machine with more memory"
            ) from None
        return block

    def read(self, sizes: Sequence[int]) -> list[memoryview]:
        """Return the parts, given their sizes in bytes.

        They are mapped copy-on-write: no memory is used until they are written to, and writes are private.
        """
        starts = [0, *accumulate(map(_padded, sizes))]
        if not starts[-1]:
            return [memoryview(bytearray()) for _ in sizes]
        path = f"/dev/fd/{self.descriptor}"
        whole = torch.from_file(path, shared=False, size=starts[-1], dtype=torch.uint8)  # mmap would keep it open
        view = whole.numpy().data
        return [view[start : start + size] for start, size in zip(starts, sizes, strict=False)]

    def __del__(self) -> None:
        os.close(self.descriptor)


def _padded(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN


def _new_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("nestling")
    with tempfile.TemporaryFile() as file:  # it has no name, and exists as long as the copied descriptor
        return os.dup(file.fileno())


def _write(descriptor: int, part: memoryview) -> None:
    while part.nbytes:  # the kernel writes at most two gigabytes at a time
        part = part[os.write(descriptor, part) :]
