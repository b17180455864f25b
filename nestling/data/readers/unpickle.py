"""Read arrays of numbers from a pickle without running any of its code.

Pickles name functions to call. The few names that arrays need are mapped to stand-ins defined here, and every other
name is refused, so a malicious file cannot run anything.
"""

from __future__ import annotations

import io
import pickle
import re
from typing import Any

import numpy as np

from nestling.errors import DataError


class _StandIn:
    """Replaces a NumPy array or dtype: keeps the arguments and the state that the pickle holds for it."""

    state: tuple[Any, ...] = ()

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.state = state


def _encode(text: str, encoding: str = "latin1") -> bytes:
    """Replace _codecs.encode, with which Python 3 writes bytes in old protocols."""
    if encoding != "latin1":
        raise DataError(f"a pickle with text in the encoding {encoding!r} is refused")
    return text.encode("latin1")


_STAND_INS: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _StandIn,
    ("numpy", "dtype"): _StandIn,
    ("numpy.core.multiarray", "_reconstruct"): _StandIn,
    ("numpy._core.multiarray", "_reconstruct"): _StandIn,  # since NumPy 2
    ("_codecs", "encode"): _encode,
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
    return {_text(key): _to_array(item) if isinstance(item, _StandIn) else item for key, item in value.items()}


def _to_array(array: _StandIn) -> np.ndarray[Any, Any]:
    _version, shape, dtype, by_columns, data = array.state
    try:
        code = _text(dtype.state[1]) + _text(dtype.arguments[0])  # the byte order and the type, such as "|u1"
    except (AttributeError, IndexError):
        code = ""
    if not re.fullmatch("[<>|][iuf][1248]", code) or not isinstance(data, bytes):
        raise DataError("a pickled array must hold plain numbers")
    return np.frombuffer(data, code).reshape(shape, order="F" if by_columns else "C")


def _text(value: object) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)
