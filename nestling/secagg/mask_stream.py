"""Masks: a key of 32 bytes, expanded to as many uniform residues as a vector has, by the stream cipher ChaCha20."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from nestling.errors import SecAggError
from nestling.imported import need

Residues = NDArray[np.unsignedinteger[Any]]  # numbers modulo 2^k, as unsigned integers of k bits
BITS = (16, 32, 64)  # k: widths in which NumPy adds modulo 2^k


def residue_type(bits: int) -> np.dtype[Any]:
    """Return the type of residues modulo ``2 ** bits``, little-endian as they travel.

    >>> residue_type(32)
    dtype('uint32')
    """
    if bits not in BITS:
        raise SecAggError(f"residues have 16, 32 or 64 bits, not {bits!r}")
    return np.dtype(f"<u{bits // 8}")


def mask(key: bytes, length: int, bits: int) -> Residues:
    """Return the mask of a key, (length,): indistinguishable from uniform residues for who has not got the key.

    A key is used for one vector alone, so the nonce and the counter begin at zero.

    >>> mask(bytes(32), 3, 16).tolist()
    [47222, 44512, 61856]
    """
    ciphers = need("cryptography.hazmat.primitives.ciphers", "secagg", "secure aggregation needs", SecAggError)
    stream = ciphers.Cipher(ciphers.algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    kind = residue_type(bits)
    return np.frombuffer(stream.update(bytes(length * kind.itemsize)), dtype=kind)
