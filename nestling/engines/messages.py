"""Messages: values as a pickle and the arrays in it, which can then be carried apart from it without being copied.

They go between processes that we started ourselves, and are never taken from outside.
"""

from __future__ import annotations

import io
import pickle
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nestling.engines.engine import Shared


@dataclass(frozen=True, eq=False)
class Message:
    """A value taken apart.

    Attributes
    ----------
    body
        The pickle.
    arrays
        The bytes of arrays and tensors: views of the value's own memory.
    shared
        What it carries of values that were put aside; only their places are in the pickle.
    """

    body: bytes
    arrays: list[memoryview]
    shared: list[Shared]


def dump(value: Any) -> Message:
    """Take a value apart.

    >>> message = dump({"a": torch.zeros(3)})
    >>> [array.nbytes for array in message.arrays]
    [12]
    >>> load(message.body, message.arrays)
    {'a': tensor([0., 0., 0.])}
    """
    arrays: list[memoryview] = []
    file = io.BytesIO()
    pickler = _Pickler(file, protocol=5, buffer_callback=lambda buffer: arrays.append(buffer.raw()))
    pickler.dump(value)
    return Message(file.getvalue(), arrays, pickler.shared)


def load(body: bytes | memoryview, arrays: Sequence[Any] = (), shared: Sequence[Any] = ()) -> Any:
    """Put a value together: its arrays lie in the memory given, and `shared` values in their places."""
    unpickler = _Unpickler(io.BytesIO(body), buffers=arrays)
    unpickler.shared = shared
    return unpickler.load()


def travels(value: Any) -> bool:
    """Whether a value can be sent to another process.

    >>> travels([1]), travels(lambda: 1)
    (True, False)
    """
    try:
        dump(value)
    except Exception:  # whatever it holds may refuse in its own words
        return False
    return True


class _Pickler(pickle.Pickler):
    """Pickles tensors as arrays: several times quicker than PyTorch's own way, which is made for files."""

    def __init__(self, file: io.BytesIO, **how: Any) -> None:
        super().__init__(file, **how)
        self.shared: list[Shared] = []
        self._places: dict[int, int] = {}

    def persistent_id(self, obj: Any) -> int | None:
        if not isinstance(obj, Shared):
            return None
        if id(obj) not in self._places:  # the jobs of a cohort share one slice
            self._places[id(obj)] = len(self.shared)
            self.shared.append(obj)
        return self._places[id(obj)]

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is torch.Tensor and obj.layout == torch.strided and obj.is_cpu and not obj.requires_grad:
            plain = obj.resolve_conj().resolve_neg()
            if _span(plain) > plain.numel():
                plain = plain.clone()  # without the gaps between its values, in the same order
            # strides go along, also those of dims of size 1: PyTorch chooses by them how to compute
            values = plain.as_strided((_span(plain),), (1,)).view(torch.uint8).numpy()
            return _tensor, (values, plain.dtype, tuple(plain.shape), plain.stride())
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    shared: Sequence[Any] = ()

    def persistent_load(self, pid: Any) -> Any:
        return self.shared[pid]


def _span(tensor: torch.Tensor) -> int:
    """How many values lie between the first and the last of a tensor in memory."""
    if not tensor.numel():
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _tensor(
    values: NDArray[np.uint8], dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...]
) -> torch.Tensor:
    with warnings.catch_warnings():  # memory that may be read only is others', and nobody here writes to it
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(values).view(dtype).as_strided(shape, stride)
