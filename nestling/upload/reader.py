"""Reading bytes that may come from anywhere: never more of them than there are."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nestling.errors import UploadError

Bytes = NDArray[np.uint8]


class Reader:
    """Bytes, and how far they were read.

    >>> reader = Reader(bytes([1, 2, 3]))
    >>> reader.take(2), reader.left
    (array([1, 2], dtype=uint8), 1)
    """

    def __init__(self, data: bytes) -> None:
        self._data = np.frombuffer(data, np.uint8)
        self._at = 0

    @property
    def left(self) -> int:
        """How many bytes were not read yet."""
        return len(self._data) - self._at

    def peek(self, most: int) -> Bytes:
        """Return the next bytes, at most so many, and stay."""
        return self._data[self._at : self._at + most]

    def take(self, count: int) -> Bytes:
        """Return the next bytes and go on."""
        if count > self.left:
            raise UploadError(f"{count} bytes are needed, but {self.left} are left")
        taken = self.peek(count)
        self._at += count
        return taken
