"""Read texts from a serialised `tf.train.Example` without TensorFlow.

The format is protocol buffers: a message is a sequence of fields, each with a number, a wire type and a value. An
Example holds Features (field 1), a map of names (1) to a Feature (2); texts are a BytesList (1) of values (1).
"""

from __future__ import annotations

from collections.abc import Iterator

from nestling.errors import DataError

_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5  # wire types


def texts_of(data: bytes, name: str) -> list[str]:
    r"""Return the texts of the feature called `name`.

    >>> texts_of(b"\n\x10\n\x0e\n\x06tokens\x12\x04\n\x02\n\x00", "tokens")
    ['']
    """
    try:
        return [
            value.decode()
            for features in _values(data, 1)
            for entry in _values(features, 1)
            if name.encode() in _values(entry, 1)
            for feature in _values(entry, 2)
            for texts in _values(feature, 1)
            for value in _values(texts, 1)
        ]
    except (IndexError, TypeError, UnicodeDecodeError) as problem:
        raise DataError(f"a serialised example cannot be read: {problem}") from None


def _values(data: bytes, field: int) -> list[bytes]:
    """Return the byte values of one field of a message."""
    return [value for number, value in _fields(data) if number == field]


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the value of every field of bytes; fields of numbers are skipped."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == _VARINT:
            _, at = _varint(data, at)
        elif kind == _BYTES:
            size, at = _varint(data, at)
            yield tag >> 3, data[at : at + size]
            at += size
        elif kind in (_EIGHT, _FOUR):
            at += 8 if kind == _EIGHT else 4
        else:
            raise IndexError(f"there is no wire type {kind}")
    if at > len(data):
        raise IndexError("it is truncated")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a whole number, stored in seven bits per byte, lowest first, and the position after it."""
    value = shift = 0
    while shift < 70:  # a number has at most ten bytes
        byte = data[at]
        value |= (byte & 127) << shift
        at += 1
        if byte < 128:
            return value, at
        shift += 7
    raise IndexError("a number does not end")
