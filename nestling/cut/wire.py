"""Serialise slices as safetensors bytes that include their plan. Nothing is ever unpickled.

A packed slice is an ordinary safetensors file; the plan and the tied names are JSON in its metadata, under a single
key: safetensors writes several keys in varying order, and equal slices must be equal bytes.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import safetensors
import safetensors.torch
from torch import Tensor

from nestling.cut.plan import Plan
from nestling.errors import StateError, first_line
from nestling.files import write_whole

_FORMAT = "nestling-slice-1"
About = TypeVar("About", bound=Any)


class _About(msgspec.Struct):
    format: str
    plan: msgspec.Raw
    tied: dict[str, str]


class _Metadata(msgspec.Struct):
    nestling: str = ""


def encode(tensors: Mapping[str, Tensor], about: msgspec.Struct) -> bytes:
    """Return tensors as safetensors bytes, with a structure about them as JSON in the metadata."""
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    return safetensors.torch.save(plain, {"nestling": msgspec.json.encode(about).decode()})


def decode(data: bytes, kind: type[About], format: str, what: str) -> tuple[dict[str, Tensor], About]:
    """Return the tensors in `data`, and the structure about them, which is of a `kind` and has a `format`.

    Raise `StateError`, which calls the content `what`, if the bytes are something else.
    """
    try:
        tensors = safetensors.torch.load(data)
        (length,) = struct.unpack_from("<Q", data)
        header = msgspec.json.decode(data[8 : 8 + length], type=dict[str, msgspec.Raw])
        metadata = msgspec.json.decode(header.get("__metadata__", b"{}"), type=_Metadata)
    except (safetensors.SafetensorError, msgspec.DecodeError, struct.error, ValueError, KeyError) as problem:
        raise StateError(f"these bytes are not a packed {what}: {first_line(problem)}") from None
    try:
        about = msgspec.json.decode(metadata.nestling, type=kind)
    except (msgspec.DecodeError, RecursionError):
        about = None
    if about is None or about.format != format:
        raise StateError(f"these bytes are safetensors, but not a {what} packed by Nestling ({format})")
    return tensors, about


def pack(state: Mapping[str, Tensor], plan: Plan) -> bytes:
    """Return the state of a sub-model and its plan as safetensors bytes; tied tensors are stored once.

    >>> import torch
    >>> state, plan = unpack(pack({"weight": torch.ones(2, 3)}, Plan({"conv1": [0, 1]})))
    >>> state["weight"].shape, plan
    (torch.Size([2, 3]), Plan(...: conv1: 2))
    """
    first: dict[tuple[int, tuple[int, ...], tuple[int, ...]], str] = {}
    tied, tensors = {}, {}
    for name, tensor in state.items():
        same = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride())
        if tensor.numel() and first.setdefault(same, name) != name:
            tied[name] = first[same]
        else:
            tensors[name] = tensor
    return encode(tensors, _About(_FORMAT, msgspec.Raw(plan.to_json()), tied))


def unpack(data: bytes) -> tuple[dict[str, Tensor], Plan]:
    """Return the state and the plan in `data`, which may be untrusted: it is validated, never executed.

    `Tally.add`, which knows the model, checks that the state fits the plan.
    """
    state, about = decode(data, _About, _FORMAT, "slice")
    for name, other in about.tied.items():
        if name in state or other not in state:
            raise StateError(f"the packed slice ties {name!r} to {other!r}, which does not fit its tensors")
        state[name] = state[other]
    return state, Plan.from_json(bytes(about.plan))


def save(path: str | os.PathLike[str], state: Mapping[str, Tensor], plan: Plan) -> None:
    """Write a packed slice to `path` so that a crash leaves either the old file or the new one, complete.

    >>> import tempfile, torch
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(f"{folder}/phone.safetensors", {"weight": torch.ones(2)}, Plan())
    ...     load(f"{folder}/phone.safetensors")[0]
    {'weight': tensor([1., 1.])}
    """
    write_whole(path, pack(state, plan))


def load(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], Plan]:
    """Return the state and the plan of the packed slice at `path`."""
    try:
        data = Path(path).read_bytes()
    except OSError as problem:
        raise StateError(f"{os.fspath(path)!r} cannot be read: {problem.strerror}") from None
    return unpack(data)
