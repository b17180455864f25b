"""Tensors as NPY bytes, and back: what comes from another machine is checked before memory is allocated for it."""

from __future__ import annotations

import io
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nestling.cut.extract import State
from nestling.errors import DeviceError, nearest
from nestling.flower.link import EncodedTensor

_BITS = {  # types that NumPy does not have travel as integers of their size
    torch.bfloat16: torch.uint16,
    torch.float8_e4m3fn: torch.uint8,
    torch.float8_e5m2: torch.uint8,
}
_MAGIC = b"\x93NUMPY\x01\x00"  # NPY, version 1.0
_PREFIX = len(_MAGIC) + 2  # and two bytes for the length of the header


def encode_tensor(tensor: Tensor) -> EncodedTensor:
    """Return a tensor as it travels.

    >>> encode_tensor(torch.ones(2, 3)).shape
    (2, 3)
    """
    plain = tensor.detach().cpu().contiguous()
    values = plain.view(_BITS.get(plain.dtype, plain.dtype)).numpy()
    return npy_bytes(_name(tensor.dtype), tuple(tensor.shape), values.reshape(-1).view(np.uint8).data)


def decode_tensor(encoded: EncodedTensor, like: Tensor, name: str = "tensor") -> Tensor:
    """Return a tensor of the shape and type of another one; raise `DeviceError` if the bytes are not exactly that.

    >>> decode_tensor(encode_tensor(torch.ones(2)), torch.zeros(2))
    tensor([1., 1.])
    >>> decode_tensor(encode_tensor(torch.ones(2)), torch.zeros(3), "bias")
    Traceback (most recent call last):
    nestling.errors.DeviceError: the tensor 'bias' has shape (2,), not (3,)
    """
    shape, dtype = tuple(like.shape), _name(like.dtype)
    if tuple(encoded.shape) != shape:
        raise DeviceError(f"the tensor {name!r} has shape {_short(encoded.shape)}, not {shape}")
    if encoded.dtype != dtype:
        raise DeviceError(f"the tensor {name!r} is of type {encoded.dtype[:20]!r}, not {dtype!r}")
    expected = _numpy_type(like.dtype)
    start = _header_end(encoded.data)
    header = encoded.data[_PREFIX:start].replace(b" ", b"").strip()
    fields = {"descr": expected.str, "fortran_order": False, "shape": shape}
    if not start or header.replace(b",}", b"}") != repr(fields).replace(" ", "").encode():
        raise DeviceError(f"the tensor {name!r} does not begin with the NPY header of {shape} values of type {dtype!r}")
    if len(encoded.data) - start != like.numel() * expected.itemsize:
        raise DeviceError(f"the tensor {name!r} does not have the bytes of {shape} values of type {dtype!r}")
    if not like.numel():
        return torch.empty(shape, dtype=like.dtype)
    values = np.frombuffer(encoded.data, dtype=expected, offset=start).reshape(shape)
    return torch.from_numpy(values.copy()).view(like.dtype)


def npy_values(data: bytes) -> bytes:
    """Return the values of a tensor that `encode_tensor` has encoded, without the header."""
    return data[_header_end(data) :]


def npy_bytes(dtype: str, shape: tuple[int, ...], values: bytes | memoryview) -> EncodedTensor:
    """Return a tensor as `encode_tensor` would, from its values."""
    return EncodedTensor(dtype, shape, b"".join((_header(dtype, shape), values)))


@lru_cache(maxsize=1024)
def _header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """Return what an NPY file begins with."""
    header = io.BytesIO()
    fields = {"descr": _numpy_type(getattr(torch, dtype)).str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, fields)
    return header.getvalue()


@cache
def _numpy_type(dtype: torch.dtype) -> np.dtype[Any]:
    """Return the type of NumPy in which a tensor travels."""
    return torch.empty(0, dtype=_BITS.get(dtype, dtype)).numpy().dtype


def _header_end(data: bytes) -> int:
    """Return where the values of an NPY file begin; 0 if it is none."""
    if data[: len(_MAGIC)] != _MAGIC or len(data) < _PREFIX:
        return 0
    end = _PREFIX + int.from_bytes(data[len(_MAGIC) : _PREFIX], "little")
    return end if end <= len(data) else 0


def packed(state: Mapping[str, Tensor]) -> dict[str, EncodedTensor]:
    """Return tensors as they travel."""
    return {name: encode_tensor(tensor) for name, tensor in state.items()}


def decode_state(tensors: Mapping[str, EncodedTensor], template: State) -> dict[str, Tensor]:
    """Return tensors with exactly the names, shapes and types of a template; raise `DeviceError` otherwise."""
    for name in tensors:
        if name not in template:
            raise DeviceError(f"it holds a tensor {name[:60]!r} that was not asked for{nearest(name[:60], template)}")
    missing = next((name for name in template if name not in tensors), None)
    if missing is not None:
        raise DeviceError(f"it lacks the tensor {missing!r}")
    return {name: decode_tensor(tensors[name], like, name) for name, like in template.items()}


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _short(shape: tuple[int, ...]) -> str:
    return str(tuple(shape)) if len(shape) <= 8 else f"({', '.join(map(str, shape[:8]))}, …)"
