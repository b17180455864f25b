"""`low_rank`: the best factors of a given rank for a sum of products of factors.

The factors of a sum of products are those of the products side by side, [B₁ B₂ …] and [A₁; A₂; …] (stacking: Wang et
al., FLoRA, NeurIPS 2024). A rank that holds them all loses nothing. Otherwise the largest singular values give the best
approximation (Eckart and Young, 1936). QR decompositions of both factors come first, so that the singular value
decomposition is that of a small matrix. All is computed in double precision.
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


def low_rank(left: Tensor, right: Tensor, rank: int) -> LowRank:
    """Return the best approximation by a rank of the product of factors (rows, any) and (any, columns).

    >>> best = low_rank(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]), torch.tensor([[4.0, 0.0], [0.0, 3.0]]), 1)
    >>> best.values, best.norm, best.lost
    (tensor([4.], dtype=torch.float64), 5.0, 3.0)
    """
    rows, columns = len(left), right.shape[1]
    left_basis, left_small = torch.linalg.qr(left.double())
    right_basis, right_small = torch.linalg.qr(right.double().T)
    u, values, v = torch.linalg.svd(left_small @ right_small.T, full_matrices=False)
    # smaller singular values are rounding errors: the rule of numpy.linalg.matrix_rank
    values = values[values > torch.finfo(torch.float64).eps * max(rows, columns) * values[:1]]
    kept = min(rank, len(values))
    norm, lost = values.norm().item(), values[kept:].norm().item()
    return LowRank(left_basis @ u[:, :kept], values[:kept], v[:kept] @ right_basis.T, norm, lost)
