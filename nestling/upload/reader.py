"""Read untrusted bytes with a check of their length."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nestling.errors import UploadError

Bytes = NDArray[np.uint8]


class Reader:
    """Bytes and the position of the next one to read.

    >>> reader = Reader(bytes([1, 2, 3]))
    >>> reader.take(2), reader.left
    (array([1, 2], dtype=uint8), 1)
    """

    def __init__(self, data: bytes) -> None:
        self._data = np.frombuffer(data, np.uint8)
        self._at = 0

    @property
    def left(self) -> int:
        """The number of bytes that are left."""
        return len(self._data) - self._at

    def peek(self, most: int) -> Bytes:
        """Return at most `most` of the next bytes without moving on."""
        return self._data[self._at : self._at + most]

    def take(self, count: int) -> Bytes:
        """Return the next `count` bytes and move on; raise `UploadError` if there are fewer."""
        if count > self.left:
            raise UploadError(f"{count} bytes are needed, but {self.left} are left")
        taken = self.peek(count)
        self._at += count
        return taken
