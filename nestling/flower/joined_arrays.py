"""Small tensors travel as one array: beside each array Flower sends some 250 bytes, and asks for it by itself.

What is joined is described by an index of names, types and shapes, which the receiver checks before it cuts.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from typing import Annotated

import msgspec
import torch

from nestling.errors import DeviceError, first_line
from nestling.flower.array_codec import decode_tensor, encode_tensor, npy_bytes, npy_values
from nestling.flower.link import EncodedTensor

SMALL = 2**16  # bytes of a tensor up to which it is joined with others
_MAX_INDEX = 2**24  # bytes of an index: that of a model with a thousand tensors has some 50 kB
_FLOATS = ("float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2", "bool")
_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_SIZES = {name: getattr(torch, name).itemsize for name in _FLOATS + _INTEGERS}

_Size = Annotated[int, msgspec.Meta(le=2**63 - 1)]


class _Entry(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    name: str
    dtype: str
    shape: Annotated[tuple[_Size, ...], msgspec.Meta(max_length=64)]  # NumPy's limit


def join(tensors: Mapping[str, EncodedTensor]) -> tuple[dict[str, EncodedTensor], EncodedTensor | None, bytes]:
    """Return the tensors that travel by themselves, the array of all others (None without any), and its index.

    >>> tensors = {"bias": encode_tensor(torch.ones(2)), "weight": encode_tensor(torch.zeros(2, 3))}
    >>> alone, joined, index = join(tensors)
    >>> alone, joined.shape, split(joined, index) == tensors
    ({}, (32,), True)
    """
    values = {
        name: npy_values(part.data)
        for name, part in tensors.items()
        if len(part.data) <= SMALL and part.dtype in _SIZES
    }
    if not values:
        return dict(tensors), None, b""
    entries = [_Entry(name, tensors[name].dtype, tensors[name].shape) for name in values]
    joined = torch.frombuffer(bytearray(b"".join(values.values())) or bytearray(1), dtype=torch.uint8)
    size = sum(map(len, values.values()))
    alone = {name: part for name, part in tensors.items() if name not in values}
    return alone, encode_tensor(joined[:size]), zlib.compress(msgspec.json.encode(entries))


def split(joined: EncodedTensor, index: bytes) -> dict[str, EncodedTensor]:
    """Return the tensors in a joined array; raise `DeviceError` if array and index are anything else."""
    shape = joined.shape
    if joined.dtype != "uint8" or len(shape) != 1 or not 0 <= shape[0] <= len(joined.data):
        raise DeviceError("its joined tensors are not a row of bytes")
    data = decode_tensor(joined, torch.empty(shape, dtype=torch.uint8, device="meta"), "joined").numpy().tobytes()
    tensors: dict[str, EncodedTensor] = {}
    start = 0
    for entry in _entries(index):
        size = _SIZES.get(entry.dtype, 0) * math.prod(entry.shape)
        if entry.dtype not in _SIZES or entry.name in tensors or min(entry.shape, default=0) < 0:
            raise DeviceError(f"the index of its joined tensors is wrong at {entry.name[:60]!r}")
        if start + size > len(data):
            raise DeviceError(f"its joined tensors end before {entry.name[:60]!r} does")
        tensors[entry.name] = npy_bytes(entry.dtype, entry.shape, data[start : start + size])
        start += size
    if start != len(data):
        raise DeviceError(f"its joined tensors have {len(data)} bytes, and its index speaks of {start}")
    return tensors


def _entries(index: bytes) -> list[_Entry]:
    try:
        reader = zlib.decompressobj()
        text = reader.decompress(index, _MAX_INDEX)
        if reader.unconsumed_tail:
            raise DeviceError(f"the index of its joined tensors has more than {_MAX_INDEX} bytes")
        return msgspec.json.decode(text, type=list[_Entry])
    except (zlib.error, msgspec.DecodeError, UnicodeError, RecursionError) as problem:
        raise DeviceError(f"the index of its joined tensors cannot be read: {first_line(problem)[:200]}") from None
