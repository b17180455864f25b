"""Blocks: memory that several processes read, freed by the kernel with the last of them, however they end.

A block is a file without a name. Its descriptor travels through a Unix socket, so there is nothing to clean up: not
after Ctrl-C, and not after a kill. It counts as memory of the machine, and not against the size of /dev/shm, which
containers make small.
"""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Sequence
from itertools import accumulate

import torch

from nestling.errors import RunFailed

TRAVEL = hasattr(socket, "SCM_RIGHTS")  # whether descriptors can be handed to other processes: not on Windows
_ALIGN = 64  # bytes: where arrays begin


class SharedMemoryFull(RunFailed):
    """There was no room in shared memory."""


class Block:
    """Bytes that were written once, and can be read wherever the descriptor is.

    Parameters
    ----------
    descriptor
        Of the file; it belongs to the block from now on.

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
        """Return the parts, of which these are the sizes in bytes.

        They can be written to: what is written is seen by nobody else. Until then no memory is used for them.
        """
        starts = [0, *accumulate(map(_padded, sizes))]
        if not starts[-1]:
            return [memoryview(bytearray()) for _ in sizes]
        path = f"/dev/fd/{self.descriptor}"
        whole = torch.from_file(path, shared=False, size=starts[-1], dtype=torch.uint8)  # mmap would keep a descriptor
        view = whole.numpy().data
        return [view[start : start + size] for start, size in zip(starts, sizes, strict=False)]

    def __del__(self) -> None:
        os.close(self.descriptor)


def _padded(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN


def _new_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("nestling")
    with tempfile.TemporaryFile() as file:  # it has no name any more, and lives on in its copy
        return os.dup(file.fileno())


def _write(descriptor: int, part: memoryview) -> None:
    while part.nbytes:  # the kernel takes two gigabytes at a time
        part = part[os.write(descriptor, part) :]
