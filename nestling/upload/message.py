"""Encode a change of weights as one message, and decode it.

A message is a byte for the format, a checksum of four bytes, and a part for every tensor, in the order of their names.
Names, shapes and dtypes are known to both sides and not sent; the checksum covers them, so that a message cannot be
decoded as other tensors. In sparse formats, a tensor's part begins with the indices of its values.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from nestling.errors import UploadError
from nestling.seeds import torch_stream
from nestling.settings.structs import Format, Upload
from nestling.upload import rice
from nestling.upload.largest import largest
from nestling.upload.reader import Reader
from nestling.upload.rice import Indices
from nestling.upload.values import EIGHT_BITS, ONE_BIT, RAW, Values

_VERSION = "nestling-upload-1"
_HEADER_SIZE = 5


class _Format(NamedTuple):
    sparse: bool
    values: Values


# The position of a format is its byte in messages: add new ones at the end.
_FORMATS: dict[Format, _Format] = {
    "dense": _Format(False, RAW),
    "topk": _Format(True, RAW),
    "8-bit": _Format(False, EIGHT_BITS),
    "1-bit": _Format(False, ONE_BIT),
    "topk-8bit": _Format(True, EIGHT_BITS),
    "topk-1bit": _Format(True, ONE_BIT),
}


def encode(change: Mapping[str, Tensor], settings: Upload, *, seed: int = 0) -> bytes:
    """Return a change as bytes.

    Parameters
    ----------
    change
        The tensors by name. Integers (counters), booleans and complex numbers are sent uncompressed in every format.
    settings
        The format and its settings.
    seed
        The seed of stochastic rounding: the same seed gives the same bytes.

    Raises
    ------
    UploadError
        If a tensor holds values that are not finite, or no values at all (a sparse or meta tensor).

    Examples
    --------
    >>> change = {"weight": torch.tensor([[0.1, -4.0], [2.0, 0.0]])}
    >>> data = encode(change, Upload(format="topk", fraction=0.5))
    >>> len(data), decode(data, change)
    (16, {'weight': tensor([[ 0., -4.], [ 2., 0.]])})
    """
    flats = {name: _flat(name, change[name]) for name in sorted(change)}
    noise = torch_stream(seed, "upload") if settings.rounding == "stochastic" else None
    format = _FORMATS[settings.format]
    coded = [name for name, flat in flats.items() if flat.is_floating_point()]
    indices: dict[str, Indices] = {}
    if format.sparse:
        selected = largest([flats[name] for name in coded], settings.fraction, settings.scope)
        indices = dict(zip(coded, selected, strict=True))
    parts = []
    for name, flat in flats.items():
        if name in indices:
            parts.append(rice.write(indices[name], len(flat)))
            parts.append(format.values.write(flat[torch.from_numpy(indices[name])], noise))
        else:
            parts.append((format.values if flat.is_floating_point() else RAW).write(flat, noise))
    head = bytes([list(_FORMATS).index(settings.format)])
    body = b"".join(parts)
    return b"".join((head, _checksum(head, body, change), body))


def decode(data: bytes, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the change in `data`, which may be untrusted: it is validated, never executed.

    Parameters
    ----------
    data
        The result of `encode`.
    like
        Tensors with the names, shapes and dtypes of the change; their values are not used, so they may be on the meta
        device.

    Raises
    ------
    UploadError
        If the bytes are damaged, truncated, of other tensors, or not a message.

    Examples
    --------
    >>> change = {"weight": torch.ones(3)}
    >>> decode(encode(change, Upload(format="8-bit"))[:-1], change)
    Traceback (most recent call last):
        ...
    nestling.errors.UploadError: the upload of 11 bytes was damaged on its way, or is one of other tensors: its checksum
    is wrong
    """
    if len(data) < _HEADER_SIZE or data[0] >= len(_FORMATS):
        raise UploadError(f"these {len(data)} bytes are no upload of a known format")
    head, checksum, body = bytes(data[:1]), bytes(data[1:_HEADER_SIZE]), bytes(data[_HEADER_SIZE:])
    if checksum != _checksum(head, body, like):
        raise UploadError(
            f"the upload of {len(data)} bytes was damaged on its way, or is one of other tensors: its checksum is wrong"
        )
    format, reader = list(_FORMATS.values())[head[0]], Reader(body)
    change = {}
    for name in sorted(like):
        try:
            change[name] = _read(reader, like[name], format)
        except UploadError as problem:
            raise UploadError(f"the upload cannot be read at the tensor {name!r}: {problem}") from None
    if reader.left:
        raise UploadError(f"the upload goes on for {reader.left} bytes after its last tensor")
    return {name: change[name] for name in like}


def _read(reader: Reader, like: Tensor, format: _Format) -> Tensor:
    size, dtype = like.numel(), like.dtype
    if not dtype.is_floating_point:
        return RAW.read(reader, size, dtype).view(like.shape)
    if not format.sparse:
        return format.values.read(reader, size, dtype).view(like.shape)
    indices = rice.read(reader, size)
    values = format.values.read(reader, len(indices), dtype)
    flat = torch.zeros(size, dtype=dtype)
    flat[torch.from_numpy(indices)] = values
    return flat.view(like.shape)


def _flat(name: str, tensor: Tensor) -> Tensor:
    if tensor.layout != torch.strided or tensor.is_meta:
        raise UploadError(f"{name!r} must be a dense tensor that holds values")
    flat = tensor.detach().cpu().reshape(-1)
    if not bool(torch.isfinite(flat).all()):
        raise UploadError(f"the tensor {name!r} holds values that are not finite, which cannot be uploaded")
    return flat


def _checksum(head: bytes, body: bytes, like: Mapping[str, Tensor]) -> bytes:
    tensors = "".join(f"{name}\0{like[name].dtype}{tuple(like[name].shape)}\0" for name in sorted(like))
    return zlib.crc32(body, zlib.crc32(head + f"{_VERSION}\0{tensors}".encode())).to_bytes(4, "little")
