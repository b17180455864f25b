"""VGG16 as FedMorph trains it on CIFAR-10 (appendix, Table 8): 14,728,266 parameters, 314,031,616 FLOPs.

Thirteen 3×3 convolutions with bias, each followed by a norm and ReLU; a max-pool after every group; a global average
and a single linear layer instead of VGG's three.

Departure: none. The five pools need images of at least 32×32.
"""

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from nestling.nets.norms import norm_layer


class VGG(nn.Sequential):
    """Images ``(batch, channels, height, width)`` → logits ``(batch, classes)``.

    ``widths`` lists the channels of the convolutions between the pools.

    >>> import torch
    >>> VGG(widths=((8,), (16,), (16, 16)))(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        *,
        widths: Sequence[Sequence[int]] = ((64,) * 2, (128,) * 2, (256,) * 3, (512,) * 3, (512,) * 3),
        channels: int = 3,
        classes: int = 10,
        norm: str = "bn",
    ) -> None:
        stages = []
        before = channels
        for stage in widths:
            layers: OrderedDict[str, nn.Module] = OrderedDict()
            for i, width in enumerate(stage, start=1):
                layers[f"conv{i}"] = nn.Conv2d(before, width, 3, padding=1)
                layers[f"norm{i}"] = norm_layer(norm, width)
                layers[f"relu{i}"] = nn.ReLU()
                before = width
            layers["pool"] = nn.MaxPool2d(2)
            stages.append(nn.Sequential(layers))
        super().__init__(
            OrderedDict(
                stages=nn.Sequential(*stages),
                pool=nn.AdaptiveAvgPool2d(1),
                flatten=nn.Flatten(1),
                head=nn.Linear(before, classes),
            )
        )
