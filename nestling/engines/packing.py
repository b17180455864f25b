"""Pack values as a pickle and the arrays in it, which can be sent separately without being copied.

Messages are only exchanged between processes that we started ourselves, and never read from outside.
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
    """A packed value.

    Attributes
    ----------
    body
        The pickle.
    arrays
        The bytes of arrays and tensors: views of the value's own memory.
    shared
        The references to shared values in it; the pickle holds only their positions in this list.
    """

    body: bytes
    arrays: list[memoryview]
    shared: list[Shared]


def dump(value: Any) -> Message:
    """Pack a value.

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
    """Unpack a value; its arrays use the memory given, and references are replaced by the `shared` values."""
    unpickler = _Unpickler(io.BytesIO(body), buffers=arrays)
    unpickler.shared = shared
    return unpickler.load()


def travels(value: Any) -> bool:
    """Return whether a value can be sent to another process.

    >>> travels([1]), travels(lambda: 1)
    (True, False)
    """
    try:
        dump(value)
    except Exception:  # any object in it may refuse with its own error
        return False
    return True


class _Pickler(pickle.Pickler):
    """Pickles tensors as arrays: several times faster than PyTorch's own pickling, which is made for files."""

    def __init__(self, file: io.BytesIO, **options: Any) -> None:
        super().__init__(file, **options)
        self.shared: list[Shared] = []
        self._places: dict[int, int] = {}

    def persistent_id(self, obj: Any) -> int | None:
        if not isinstance(obj, Shared):
            return None
        if id(obj) not in self._places:  # the jobs of a group share one slice
            self._places[id(obj)] = len(self.shared)
            self.shared.append(obj)
        return self._places[id(obj)]

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is torch.Tensor and obj.layout == torch.strided and obj.is_cpu and not obj.requires_grad:
            plain = obj.resolve_conj().resolve_neg()
            if _span(plain) > plain.numel():
                plain = plain.clone()  # without the gaps between its values, in the same order
            # keep the strides, also those of dims of size 1: PyTorch chooses kernels by them
            values = plain.as_strided((_span(plain),), (1,)).view(torch.uint8).numpy()
            return _tensor, (values, plain.dtype, tuple(plain.shape), plain.stride())
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    shared: Sequence[Any] = ()

    def persistent_load(self, pid: Any) -> Any:
        return self.shared[pid]


def _span(tensor: torch.Tensor) -> int:
    """Return the number of values in memory from the first to the last of a tensor."""
    if not tensor.numel():
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _tensor(
    values: NDArray[np.uint8], dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...]
) -> torch.Tensor:
    with warnings.catch_warnings():  # read-only memory belongs to others and is never written to here
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(values).view(dtype).as_strided(shape, stride)
