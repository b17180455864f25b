"""Where values stand: rising places as a Rice code of the gaps between them.

A gap is written as its lowest bits, whose number is the code's parameter, and the rest in unary (Rice and Plaunt,
Adaptive Variable-Length Coding, 1971). Gaps between places chosen at random are geometric, for which this is within a
few per cent of the entropy: 4.76 bits instead of 4.69 for each of 10 %. With the parameter 0 it is a bitmap, so it
never takes more than one bit for every place there is. The lowest bits of all gaps come first and the unary parts
after them, so that whole arrays are written and read at once.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nestling.errors import UploadError
from nestling.upload.reader import Reader

Places = NDArray[np.int64]


def write(places: Places, size: int) -> bytes:
    """Return the code of rising places below `size`.

    >>> code = write(np.array([3, 4, 900]), 1000)
    >>> len(code), read(Reader(code), 1000)
    (8, array([  3,   4, 900]))
    """
    count = len(places)
    head = count.to_bytes(_width(size), "little")
    if count in (0, size):
        return head
    gaps = np.diff(places, prepend=-1) - 1
    low = _parameter(gaps)
    high = gaps >> low
    unary = np.zeros(count + int(high.sum()), np.uint8)
    unary[np.cumsum(high + 1) - 1] = 1
    lowest = (gaps[:, None] >> np.arange(low)) & 1
    return b"".join((head, bytes([low]), np.packbits(lowest.astype(np.uint8)).tobytes(), np.packbits(unary).tobytes()))


def read(reader: Reader, size: int) -> Places:
    """Return the places that `write` wrote: rising, and below `size`."""
    count = int.from_bytes(reader.take(_width(size)).tobytes(), "little")
    if count > size:
        raise UploadError(f"{count} of {size} values cannot be kept")
    if count in (0, size):
        return np.arange(count)
    low = int(reader.take(1)[0])
    # the writer has a shorter code than that; this also bounds what is allocated below, and keeps sums from overflowing
    if count * (low + 1) > size or 1 << low > size:
        raise UploadError(f"the places of {count} of {size} values are never written with {low} bits each")
    lowest = np.unpackbits(reader.take((count * low + 7) // 8), count=count * low).reshape(count, low)
    ones = np.flatnonzero(np.unpackbits(reader.peek((count + (size >> low) + 7) // 8)))[:count]
    if len(ones) < count:
        raise UploadError(f"there are {len(ones)} places where {count} are announced")
    reader.take(int(ones[-1]) // 8 + 1)
    gaps = ((np.diff(ones, prepend=-1) - 1) << low) + lowest @ (1 << np.arange(low))
    places: Places = np.cumsum(gaps + 1) - 1
    if places[-1] >= size:
        raise UploadError(f"the place {places[-1]} is not among 0 to {size - 1}")
    return places


def _parameter(gaps: Places) -> int:
    """The number of lowest bits that makes the code shortest; 0, the bitmap, is always tried."""
    near = (int(gaps.sum()) // len(gaps) + 1).bit_length() - 1
    tried: set[int] = {0, *range(max(0, near - 1), near + 2)}
    return min((len(gaps) * (low + 1) + int((gaps >> low).sum()), low) for low in tried)[1]


def _width(size: int) -> int:
    """Bytes of a number from 0 to `size`."""
    return (size.bit_length() + 7) // 8
