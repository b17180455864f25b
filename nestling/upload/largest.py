"""Select the values of largest magnitude (Top-K), over all tensors together or in each tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nestling.settings.structs import Scope
from nestling.upload.rice import Indices


def largest(flats: Sequence[Tensor], share: float, scope: Scope) -> list[Indices]:
    """Return for every tensor the indices of its values among the `share` of largest magnitude.

    Among equal magnitudes the first are selected. Zeros never are: values that are not sent are decoded as zeros.

    Parameters
    ----------
    flats
        Floating-point tensors of one dimension, all finite.
    share, scope
        As in `Upload`.

    Examples
    --------
    >>> largest([torch.tensor([1.0, -3.0]), torch.tensor([2.0, 0.5])], 0.5, "global")
    [array([1]), array([0])]
    """
    if scope == "tensor":
        return [_largest_indices(_magnitudes([flat]), share) for flat in flats]
    if not flats:
        return []
    indices = _largest_indices(_magnitudes(flats), share)
    ends = np.cumsum([len(flat) for flat in flats])
    parts = np.split(indices, np.searchsorted(indices, ends[:-1]))
    return [part - (end - len(flat)) for part, end, flat in zip(parts, ends, flats, strict=True)]


def _magnitudes(flats: Sequence[Tensor]) -> NDArray[np.int32] | NDArray[np.int64]:
    """Return all magnitudes reinterpreted as integers, which have the same order."""
    double = any(flat.dtype == torch.float64 for flat in flats)
    values = torch.cat([flat.double() if double else flat.float() for flat in flats])
    bits = values.view(torch.int64) if double else values.view(torch.int32)
    return bits.bitwise_and_(torch.iinfo(bits.dtype).max).numpy()


def _largest_indices(magnitudes: NDArray[np.int32] | NDArray[np.int64], share: float) -> Indices:
    size = len(magnitudes)
    count = min(size, math.ceil(round(share * size, 9)))  # 0.07 · 100 is 7.000000000000001
    if not count:
        return np.arange(0)
    least = np.partition(magnitudes, size - count)[size - count]
    kept = magnitudes > least
    if least > 0:
        kept[np.flatnonzero(magnitudes == least)[: count - int(kept.sum())]] = True
    return np.flatnonzero(kept)
