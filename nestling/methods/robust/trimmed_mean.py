"""The coordinate-wise trimmed mean: the mean without a share of the largest and of the smallest values.

Yin, Chen, Ramchandran, Bartlett, Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates, ICML 2018,
Definition 2. Departures: it is over those who hold a coordinate, and the number of values that are left out is rounded
up, as far as one value remains: with three holders, a share of 0.2 rounded down would leave out nobody.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from nestling.errors import MethodError
from nestling.methods.robust.per_coordinate import CoordinateRule


@dataclass(frozen=True)
class TrimmedMean(CoordinateRule):
    """Every coordinate becomes the mean of its holders' values without the extremes.

    Attributes
    ----------
    share
        β: the share of the holders whose values are left out at either end, above 0 and below 0.5. Attackers may be
        that share of the holders.

    Examples
    --------
    >>> TrimmedMean(0.2).merge(torch.tensor([[1.0, 2.0, 3.0, 9.0], [1.0, 2.0, 9.0, torch.inf]]), torch.tensor([4, 3]))
    tensor([2.5000, 2.0000])
    """

    label: ClassVar[str] = "trimmed-mean"
    share: float = 0.2

    def __post_init__(self) -> None:
        if not 0 < self.share < 0.5:
            raise MethodError(
                f"trimmed-mean leaves out a share above 0 and below 0.5 at either end, such as 0.2, not {self.share!r}"
            )

    def merge(self, values: Tensor, holders: Tensor) -> Tensor:
        """Return the trimmed mean of sorted values, (coordinates, clients)."""
        # the rounding keeps 0.07 · 100 = 7.000000000000001 from becoming 8
        trimmed = (self.share * holders.double()).mul(1e9).round().div(1e9).ceil().long()
        trimmed = torch.minimum(trimmed, (holders - 1) // 2)[:, None]
        rank = torch.arange(values.shape[-1])
        kept = (trimmed <= rank) & (rank < holders[:, None] - trimmed)
        lowest = values[:, :1]  # relative to it, a mean of equal values is exactly that value
        total = torch.where(kept, values - lowest, 0.0).sum(-1, keepdim=True)
        return (lowest + total / (holders[:, None] - 2 * trimmed)).squeeze(-1)
