"""The convolutional net of HeteroFL (Diao et al. 2021, Table 6, MNIST), and the same for sensor windows.

Four times [3×3 convolution with bias, norm, ReLU, max-pool 2], without the last pool; then a global average and one
linear layer. Initialisation is torch's default, with the bias of the linear layer at 0.

Departures: HeteroFL's Scaler is part of the method, not of the net. The one-dimensional net is not in the papers: it
has the same structure with one-dimensional layers, for windows of inertial sensors (9 signals × 128 steps).
"""

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from nestling.nets.norms import norm_layer


class CNN(nn.Sequential):
    """``(batch, channels, *positions)`` → ``(batch, classes)``, with 1 or 2 position ``dimensions``.

    >>> import torch
    >>> CNN(2)(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    >>> CNN(1, channels=9, classes=6)(torch.zeros(2, 9, 128)).shape
    torch.Size([2, 6])
    """

    def __init__(
        self,
        dimensions: int = 2,
        *,
        channels: int = 1,
        widths: Sequence[int] = (64, 128, 256, 512),
        classes: int = 10,
        norm: str = "bn",
    ) -> None:
        conv = nn.Conv1d if dimensions == 1 else nn.Conv2d
        pool = nn.MaxPool1d if dimensions == 1 else nn.MaxPool2d
        mean = nn.AdaptiveAvgPool1d if dimensions == 1 else nn.AdaptiveAvgPool2d
        blocks = []
        for i, width in enumerate(widths):
            block: OrderedDict[str, nn.Module] = OrderedDict()
            block["conv"] = conv(channels if i == 0 else widths[i - 1], width, 3, padding=1)
            block["norm"] = norm_layer(norm, width, dimensions)
            if i + 1 < len(widths):
                block["pool"] = pool(2)
            block["relu"] = nn.ReLU()  # after the pool: the same numbers and gradients for a quarter of the work
            blocks.append(nn.Sequential(block))
        head = nn.Linear(widths[-1], classes)
        nn.init.zeros_(head.bias)
        super().__init__(OrderedDict(blocks=nn.Sequential(*blocks), pool=mean(1), flatten=nn.Flatten(1), head=head))
