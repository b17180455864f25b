"""The coordinate-wise median: withstands any updates of fewer than half of the holders of a coordinate.

Yin, Chen, Ramchandran, Bartlett, Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates, ICML 2018,
Definition 1. Departures: the median is over those who hold a coordinate; it is that of the weights, and thereby that
of the changes, because all holders of a coordinate begin with the same value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from nestling.methods.robust.per_coordinate import CoordinateRule


@dataclass(frozen=True)
class Median(CoordinateRule):
    """Every coordinate becomes the median of its holders' values: of an even number, the mean of the middle two.

    >>> Median().merge(torch.tensor([[1.0, 2.0, 9.0, torch.inf], [1.0, 2.0, 4.0, 9.0]]), torch.tensor([3, 4]))
    tensor([2., 3.])
    """

    label: ClassVar[str] = "median"

    def merge(self, values: Tensor, holders: Tensor) -> Tensor:
        """Return the median of sorted values, (coordinates, clients)."""
        middle = torch.stack([(holders - 1) // 2, holders // 2], -1)
        return values.gather(-1, middle).mean(-1)
