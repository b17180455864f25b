"""Fixed-point numbers: real values as residues modulo 2^k, whose sum is exact and cannot overflow."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nestling.errors import SecAggError
from nestling.secagg.mask_stream import Residues, residue_type

_EXACT = 2**53  # up to here, whole numbers are exact in double precision


@dataclass(frozen=True)
class FixedPoint:
    """A code for values from −range to range, of which at most `terms` are added.

    Attributes
    ----------
    range
        The largest magnitude of a value; larger ones are clipped, and counted.
    terms
        How many values a sum has at most.
    bits
        k: sums are modulo 2^k.

    Examples
    --------
    >>> code = FixedPoint(range=1.0, terms=2, bits=32)
    >>> one, clipped = code.encode(np.array([0.25, -1.5]))
    >>> clipped, np.round(code.decode(one + one), 6).tolist()
    (1, [0.5, -2.0])
    """

    range: float
    terms: int
    bits: int = 32

    def __post_init__(self) -> None:
        residue_type(self.bits)
        if not (self.terms >= 1 and 0 < self.range < np.inf):
            raise SecAggError(f"a sum of {self.terms} values up to {self.range!r} cannot be coded")
        if self.levels < 1:
            raise SecAggError(f"{self.bits} bits are too few for a sum of {self.terms} values")

    @cached_property
    def levels(self) -> int:
        """The largest magnitude of a coded value: `terms` of them fit into the residues with their signs."""
        return min(((1 << self.bits) - 1) // (2 * self.terms), _EXACT)

    @property
    def step(self) -> float:
        """The distance of two neighbouring values; a sum is wrong by at most half of it for each term."""
        return self.range / self.levels

    def encode(self, values: NDArray[np.float64]) -> tuple[Residues, int]:
        """Return the residues of values, and how many values were out of range and clipped."""
        if not np.isfinite(values).all():
            raise SecAggError("values that are not finite cannot be summed securely")
        clipped = int((np.abs(values) > self.range).sum())
        levels = np.rint(np.clip(values / self.range, -1.0, 1.0) * self.levels)
        return levels.astype(np.int64).astype(residue_type(self.bits)), clipped

    def decode(self, total: Residues) -> NDArray[np.float64]:
        """Return the values of a sum of residues."""
        signed: NDArray[Any] = total.view(np.dtype(f"<i{self.bits // 8}"))
        return signed.astype(np.float64) * self.step
