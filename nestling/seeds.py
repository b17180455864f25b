"""Randomness: one seed, from which a random stream is derived for every purpose.

A stream is named by its purpose alone (the round, the client, "batches", …). So a client's random numbers do not depend
on the worker that runs it, on other clients, or on interruptions of the run.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch


def derive(seed: int, *name: str | int) -> int:
    """Return the seed of the stream called `name`: 63 bits that depend on all parts of the name, in order.

    >>> derive(0, "batches", 3, 7) == derive(0, "batches", 3, 7)
    True
    >>> derive(0, "batches", 3, 7) == derive(0, "batches", 37)
    False
    """
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in (seed, *name))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def torch_stream(seed: int, *name: str | int) -> torch.Generator:
    """Return a PyTorch generator for the stream called `name`.

    >>> torch.equal(
    ...     torch.rand(3, generator=torch_stream(0, "weights")), torch.rand(3, generator=torch_stream(0, "weights"))
    ... )
    True
    """
    return torch.Generator().manual_seed(derive(seed, *name))


def numpy_stream(seed: int, *name: str | int) -> np.random.Generator:
    """Return a NumPy generator for the stream called `name`.

    >>> int(numpy_stream(0, "levels").integers(100)) == int(numpy_stream(0, "levels").integers(100))
    True
    """
    return np.random.default_rng(derive(seed, *name))
