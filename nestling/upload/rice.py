"""Encode increasing indices as a Rice code of the gaps between them.

A gap is written as its lowest bits, whose number is the code's parameter, and the rest in unary (Rice and Plaunt,
Adaptive Variable-Length Coding, 1971). Gaps between random indices have a geometric distribution, for which this is
within a few per cent of the entropy: 4.76 bits instead of 4.69 per index at 10 %. With parameter 0 it is a bitmap, so
it never takes more than one bit per value of the tensor. The lowest bits of all gaps come first and the unary parts
after them, so that both sides work on whole arrays.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nestling.errors import UploadError
from nestling.upload.reader import Reader

Indices = NDArray[np.int64]


def write(indices: Indices, size: int) -> bytes:
    """Return the code of increasing indices below `size`.

    >>> code = write(np.array([3, 4, 900]), 1000)
    >>> len(code), read(Reader(code), 1000)
    (8, array([  3,   4, 900]))
    """
    count = len(indices)
    head = count.to_bytes(_width(size), "little")
    if count in (0, size):
        return head
    gaps = np.diff(indices, prepend=-1) - 1
    low = _parameter(gaps)
    high = gaps >> low
    unary = np.zeros(count + int(high.sum()), np.uint8)
    unary[np.cumsum(high + 1) - 1] = 1
    lowest = (gaps[:, None] >> np.arange(low)) & 1
    return b"".join((head, bytes([low]), np.packbits(lowest.astype(np.uint8)).tobytes(), np.packbits(unary).tobytes()))


def read(reader: Reader, size: int) -> Indices:
    """Return the indices that `write` has encoded: increasing, and below `size`."""
    count = int.from_bytes(reader.take(_width(size)).tobytes(), "little")
    if count > size:
        raise UploadError(f"the message holds {count} values of a tensor that has {size}")
    if count in (0, size):
        return np.arange(count)
    low = int(reader.take(1)[0])
    # `write` would choose a shorter code; this also bounds the memory used below, and keeps sums from overflowing
    if count * (low + 1) > size or 1 << low > size:
        raise UploadError(f"the indices of {count} of {size} values are never encoded with parameter {low}")
    lowest = np.unpackbits(reader.take((count * low + 7) // 8), count=count * low).reshape(count, low)
    ones = np.flatnonzero(np.unpackbits(reader.peek((count + (size >> low) + 7) // 8)))[:count]
    if len(ones) < count:
        raise UploadError(f"the message holds {len(ones)} indices, but its header says {count}")
    reader.take(int(ones[-1]) // 8 + 1)
    gaps = ((np.diff(ones, prepend=-1) - 1) << low) + lowest @ (1 << np.arange(low))
    indices: Indices = np.cumsum(gaps + 1) - 1
    if indices[-1] >= size:
        raise UploadError(f"the index {indices[-1]} is not in 0 to {size - 1}")
    return indices


def _parameter(gaps: Indices) -> int:
    """Return the number of lowest bits with the shortest code; 0, the bitmap, is always a candidate."""
    near = (int(gaps.sum()) // len(gaps) + 1).bit_length() - 1
    candidates: set[int] = {0, *range(max(0, near - 1), near + 2)}
    return min((len(gaps) * (low + 1) + int((gaps >> low).sum()), low) for low in candidates)[1]


def _width(size: int) -> int:
    """Return how many bytes a number from 0 to `size` takes."""
    return (size.bit_length() + 7) // 8
