"""Randomness: one seed, and from it a stream for every purpose.

A stream is named by what it is for (the round, the client, "batches", …) and by nothing else. What a client draws
therefore does not depend on which worker runs it, who ran before, or where a run was interrupted.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch


def derive(seed: int, *name: str | int) -> int:
    """Return the seed of the stream called `name`: 63 bits that depend on every part of it, and on their order.

    >>> derive(0, "batches", 3, 7) == derive(0, "batches", 3, 7)
    True
    >>> derive(0, "batches", 3, 7) == derive(0, "batches", 37)
    False
    """
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in (seed, *name))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def torch_stream(seed: int, *name: str | int) -> torch.Generator:
    """Return PyTorch's generator for the stream called `name`.

    >>> torch.equal(
    ...     torch.rand(3, generator=torch_stream(0, "weights")), torch.rand(3, generator=torch_stream(0, "weights"))
    ... )
    True
    """
    return torch.Generator().manual_seed(derive(seed, *name))


def numpy_stream(seed: int, *name: str | int) -> np.random.Generator:
    """Return NumPy's generator for the stream called `name`.

    >>> int(numpy_stream(0, "levels").integers(100)) == int(numpy_stream(0, "levels").integers(100))
    True
    """
    return np.random.default_rng(derive(seed, *name))
