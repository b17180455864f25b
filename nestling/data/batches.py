"""Batches of a client's samples."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor


def batches(samples: Tensor, size: int, generator: torch.Generator | None = None) -> Iterator[Tensor]:
    """Yield the indices of samples in batches, shuffled if a generator is given.

    A last batch of a single sample joins the one before it: a norm over one value has no variance.

    >>> [batch.tolist() for batch in batches(torch.arange(7), 3)]
    [[0, 1, 2], [3, 4, 5, 6]]
    """
    if generator is not None:
        samples = samples[torch.randperm(len(samples), generator=generator, device=generator.device)]
    cuts = list(range(size, len(samples), size))
    if cuts and len(samples) - cuts[-1] == 1:
        cuts.pop()
    yield from samples.tensor_split(cuts) if len(samples) else ()
