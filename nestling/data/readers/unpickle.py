"""Read arrays of numbers from a pickle without running any of its code.

Pickles name functions to call. The few names that arrays need are mapped to stand-ins defined here, and every other
name is refused, so a malicious file cannot run anything.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np

from nestling.errors import DataError

_NUMPY = ("numpy.core.multiarray", "numpy._core.multiarray")  # before and since NumPy 2


class _Kind:
    """Stand-in for numpy.dtype: keeps its code, such as "u1"."""

    def __init__(self, code: str | bytes, *_flags: object) -> None:
        self.code = code.decode("ascii") if isinstance(code, bytes) else str(code)
        self.order = "|"

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        order = state[1]
        self.order = order.decode("ascii") if isinstance(order, bytes) else str(order)


class _Array:
    """Stand-in for numpy.ndarray: keeps its pickled state, from which :func:`_to_array` makes the array."""

    state: tuple[Any, ...] = ()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.state = state


def _reconstruct(*_arguments: object) -> _Array:
    return _Array()


def _encode(text: str, encoding: str = "latin1") -> bytes:
    """Stand-in for _codecs.encode, with which Python 3 writes bytes in old protocols."""
    if encoding != "latin1":
        raise DataError(f"a pickle with text in the encoding {encoding!r} is refused")
    return text.encode("latin1")


_STAND_INS: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Kind,
    ("_codecs", "encode"): _encode,
    **{(module, "_reconstruct"): _reconstruct for module in _NUMPY},
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _STAND_INS:
            raise DataError(f"a pickle that names {module}.{name} is refused: only arrays of numbers are read from one")
        return _STAND_INS[module, name]


def unpickle(data: bytes) -> dict[str, Any]:
    """Read a pickled dictionary of arrays, lists, text and numbers; keys become text, Python 2's strings stay bytes.

    >>> unpickle(pickle.dumps({b"labels": [3, 1]}))
    {'labels': [3, 1]}
    >>> unpickle(pickle.dumps({"run": exec}))
    Traceback (most recent call last):
    nestling.errors.DataError: a pickle that names builtins.exec is refused: only arrays of numbers are read from one
    """
    value = _Unpickler(io.BytesIO(data), encoding="bytes").load()
    if not isinstance(value, dict):
        raise DataError(f"a pickle should hold a dictionary, not {type(value).__name__}")
    return {
        key.decode("latin1") if isinstance(key, bytes) else str(key): _to_array(v) if isinstance(v, _Array) else v
        for key, v in value.items()
    }


def _to_array(array: _Array) -> np.ndarray[Any, Any]:
    _version, shape, kind, by_columns, data = array.state
    if not isinstance(kind, _Kind) or kind.code[:1] not in "iuf" or not isinstance(data, bytes):
        raise DataError("a pickled array must hold plain numbers")
    order = kind.order if kind.order in "<>" else "="
    return np.frombuffer(data, np.dtype(order + kind.code)).reshape(shape, order="F" if by_columns else "C")
