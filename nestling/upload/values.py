"""Encode the values of one tensor: uncompressed, in 8 bits, or in 1 bit. Little-endian everywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from nestling.errors import UploadError
from nestling.upload.reader import Reader

_LEVELS = 127  # quantisation levels on either side of zero
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Values(NamedTuple):
    """A pair of functions that encode and decode values.

    Attributes
    ----------
    write
        (values of shape (size,), generator for stochastic rounding or none) → bytes.
    read
        (reader, size, dtype) → values of shape (size,).
    """

    write: Callable[[Tensor, torch.Generator | None], bytes]
    read: Callable[[Reader, int, torch.dtype], Tensor]


def write_raw(flat: Tensor, _noise: torch.Generator | None = None) -> bytes:
    r"""Return the bytes of all values, uncompressed.

    >>> write_raw(torch.tensor([1, 258], dtype=torch.int16))
    b'\x01\x00\x02\x01'
    """
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    bits = flat.contiguous().view(_INTEGERS[flat.itemsize]).numpy()
    return bits.astype(f"<i{flat.itemsize}", copy=False).tobytes()


def read_raw(reader: Reader, size: int, dtype: torch.dtype) -> Tensor:
    """Return uncompressed values; raise `UploadError` if one is not finite."""
    if dtype.is_complex:
        return torch.view_as_complex(read_raw(reader, 2 * size, dtype.to_real()).view(size, 2))
    bits = reader.take(size * dtype.itemsize).view(f"<i{dtype.itemsize}")
    if dtype == torch.bool:
        return torch.from_numpy(bits != 0)
    flat = torch.from_numpy(bits.astype(f"=i{dtype.itemsize}")).view(dtype)
    if dtype.is_floating_point and not bool(torch.isfinite(flat).all()):
        raise UploadError("there are values that are not finite")
    return flat


def write_8bit(flat: Tensor, noise: torch.Generator | None = None) -> bytes:
    """Return the bytes of the largest magnitude, and of every value as a multiple of 1/127 of it.

    >>> read_8bit(Reader(write_8bit(torch.tensor([0.0, 1.0, -127.0, 2.4]))), 4, torch.float32)
    tensor([   0.,    1., -127.,    2.])
    """
    if not len(flat):
        return b""
    peak = flat.abs().max()
    levels = flat.double() / (peak.double() if peak > 0 else 1.0) * _LEVELS
    if noise is None:
        levels = levels.round_()
    else:
        # the sum may round up to 128
        levels = levels.add_(torch.rand(len(flat), dtype=torch.float64, generator=noise)).floor_().clamp_(max=_LEVELS)
    return write_raw(peak.reshape(1)) + write_raw(levels.to(torch.int8))


def read_8bit(reader: Reader, size: int, dtype: torch.dtype) -> Tensor:
    """Return values within half a quantisation step of those encoded (one step with stochastic rounding)."""
    if not size:
        return torch.zeros(0, dtype=dtype)
    peak = _scale(reader, dtype)
    levels = read_raw(reader, size, torch.int8)
    if int(levels.min()) < -_LEVELS:
        raise UploadError(f"there are levels outside of -{_LEVELS} to {_LEVELS}")
    return (levels.double().div_(_LEVELS) * peak).to(dtype)


def write_1bit(flat: Tensor, _noise: torch.Generator | None = None) -> bytes:
    """Return the bytes of the mean magnitude, and of the sign of every value.

    >>> read_1bit(Reader(write_1bit(torch.tensor([1.0, -2.0, 3.0]))), 3, torch.float32)
    tensor([ 2., -2.,  2.])
    """
    if not len(flat):
        return b""
    sizes = flat.abs()
    peak = sizes.max()
    # divided by the largest, equal magnitudes become ones: their mean is exact, and no sum overflows
    mean = peak.double() * (sizes / peak).mean(dtype=torch.float64) if peak > 0 else peak
    return write_raw(mean.to(flat.dtype).reshape(1)) + np.packbits((flat < 0).numpy()).tobytes()


def read_1bit(reader: Reader, size: int, dtype: torch.dtype) -> Tensor:
    """Return values that all have the encoded magnitude."""
    if not size:
        return torch.zeros(0, dtype=dtype)
    mean = _scale(reader, dtype)
    negative = torch.from_numpy(np.unpackbits(reader.take((size + 7) // 8), count=size).astype(bool))
    return torch.where(negative, -mean, mean).to(dtype)


def _scale(reader: Reader, dtype: torch.dtype) -> Tensor:
    """Return the magnitude by which a tensor's values are scaled, as float64."""
    scale = read_raw(reader, 1, dtype).double().squeeze(0)
    if scale < 0:
        raise UploadError(f"the magnitude {float(scale)!r} is below zero")
    return scale


RAW = Values(write_raw, read_raw)
EIGHT_BITS = Values(write_8bit, read_8bit)
ONE_BIT = Values(write_1bit, read_1bit)
