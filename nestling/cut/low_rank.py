"""`ProductSum`: a sum of products of two factors, and the best factors of a given rank for it.

The factors of a sum of products are those of the products side by side, [B₁ B₂ …] and [A₁; A₂; …] (stacking: Wang et
al., FLoRA, NeurIPS 2024). If a rank holds them all, nothing is lost. Otherwise the largest singular values give the
best approximation (Eckart and Young, 1936). The stacked factors are reduced by QR decompositions first, so that the
singular value decomposition is that of a small matrix. All is computed in double precision.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class LowRank:
    """The best approximation of a matrix (rows, columns) by a rank: left · diag(values) · right.

    Attributes
    ----------
    left, values, right
        (rows, k), (k,) decreasing and above zero, (k, columns), in double precision; columns of `left` and rows of
        `right` are orthonormal. k is the rank of the matrix if that is less than the rank asked for.
    norm, lost
        The Frobenius norms of the matrix, and of what the approximation leaves out.
    """

    left: Tensor
    values: Tensor
    right: Tensor
    norm: float
    lost: float


class ProductSum:
    """A sum of matrices (rows, columns), each of which is given as a product of two factors.

    Factors are kept as they are, side by side, while they take less memory than the sum.

    Examples
    --------
    >>> total = ProductSum(3, 2)
    >>> total.add(torch.tensor([[1.0], [0.0], [0.0]]), torch.tensor([[4.0, 0.0]]))
    >>> total.add(torch.tensor([[0.0], [1.0], [0.0]]), torch.tensor([[0.0, 3.0]]))
    >>> best = total.best(rank=1)
    >>> best.values, best.norm, best.lost
    (tensor([4.], dtype=torch.float64), 5.0, 3.0)
    """

    def __init__(self, rows: int, columns: int) -> None:
        self._rows, self._columns = rows, columns
        self._left: list[Tensor] = []
        self._right: list[Tensor] = []
        self._dense: Tensor | None = None

    def add(self, left: Tensor, right: Tensor) -> None:
        """Add the product of a factor (rows, k) and a factor (k, columns)."""
        left, right = left.double(), right.double()
        if self._dense is not None:
            self._dense.addmm_(left, right)
            return
        self._left.append(left)
        self._right.append(right)
        if sum(map(len, self._right)) * (self._rows + self._columns) > self._rows * self._columns:
            self._dense = torch.cat(self._left, 1) @ torch.cat(self._right)
            self._left, self._right = [], []

    def best(self, rank: int) -> LowRank:
        """Return the best approximation of the sum by a rank."""
        if self._dense is not None:
            left, values, right = torch.linalg.svd(self._dense, full_matrices=False)
        elif self._right:
            left_basis, left_small = torch.linalg.qr(torch.cat(self._left, 1))
            right_basis, right_small = torch.linalg.qr(torch.cat(self._right).T)
            left, values, right = torch.linalg.svd(left_small @ right_small.T, full_matrices=False)
            left, right = left_basis @ left, right @ right_basis.T
        else:
            left, values, right = torch.zeros(self._rows, 0), torch.zeros(0), torch.zeros(0, self._columns)
            left, values, right = left.double(), values.double(), right.double()
        # smaller singular values are rounding errors: the rule of numpy.linalg.matrix_rank
        least = torch.finfo(torch.float64).eps * max(self._rows, self._columns) * (values[0] if len(values) else 0.0)
        values = values[values > least]
        kept = min(rank, len(values))
        return LowRank(left[:, :kept], values[:kept], right[:kept], values.norm().item(), values[kept:].norm().item())
