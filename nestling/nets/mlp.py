"""The two-hidden-layer perceptron of FedAvg (McMahan et al. 2017, "2NN"): 784-200-200-10, 199,210 parameters.

Departure: none; images are ``(batch, channels, size, size)`` and are flattened here. With a `rank`, which is ours,
every layer is frozen and has an adapter (`nestling.nets.adapted`).
"""

from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from nestling.nets.adapted import AdaptedLinear


class MLP(nn.Sequential):
    """Linear layers with ReLU between: ``(batch, channels, size, size)`` → ``(batch, classes)``.

    >>> import torch
    >>> MLP()(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        *,
        channels: int = 1,
        size: int = 28,
        widths: Sequence[int] = (200, 200),
        classes: int = 10,
        rank: int | None = None,
    ) -> None:
        super().__init__()

        def linear(inputs: int, outputs: int) -> nn.Linear:
            return nn.Linear(inputs, outputs) if rank is None else AdaptedLinear(inputs, outputs, rank)

        self.add_module("flatten", nn.Flatten(1))
        for i, (before, width) in enumerate(pairwise((channels * size * size, *widths)), start=1):
            self.add_module(f"linear{i}", linear(before, width))
            self.add_module(f"relu{i}", nn.ReLU())
        self.add_module("head", linear(widths[-1], classes))
