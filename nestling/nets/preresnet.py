"""The pre-activation ResNet18 of HeteroFL (Diao et al. 2021) and FedRolex (Alam et al. 2022), for CIFAR.

A 3×3 convolution as stem; blocks of [norm, ReLU, 3×3 convolution] twice; a final norm and ReLU, a global average and
one linear layer. Convolutions have no bias; initialisation is torch's default, with the linear bias at 0.

HeteroFL's tables belong to blocks [1, 1, 1, 2] (9,622,090 parameters), FedRolex trains [2, 2, 2, 2] (11,172,170).

Departures: no Scaler (it belongs to the method). Step sizes, which these papers do not have, are optional.
"""

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from nestling.nets.norms import norm_layer
from nestling.nets.residual import Residual


class PreResNet(nn.Sequential):
    """Images ``(batch, channels, height, width)`` → logits ``(batch, classes)``.

    ``depths`` are the numbers of blocks of each stage and ``widths`` their channels; every stage after the first halves
    the height and width of its input.

    >>> import torch
    >>> PreResNet(widths=(8, 16, 32, 64))(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        *,
        depths: Sequence[int] = (2, 2, 2, 2),
        widths: Sequence[int] = (64, 128, 256, 512),
        channels: int = 3,
        classes: int = 10,
        norm: str = "bn",
        learn_steps: bool = False,
    ) -> None:
        stages = []
        before = widths[0]
        for i, (depth, width) in enumerate(zip(depths, widths, strict=True)):
            blocks = []
            for j in range(depth):
                stride = 2 if i > 0 and j == 0 else 1
                blocks.append(_block(before, width, stride, norm, learn_steps))
                before = width
            stages.append(nn.Sequential(*blocks))
        head = nn.Linear(before, classes)
        nn.init.zeros_(head.bias)
        super().__init__(
            OrderedDict(
                stem=nn.Conv2d(channels, widths[0], 3, padding=1, bias=False),
                stages=nn.Sequential(*stages),
                norm=norm_layer(norm, before),
                relu=nn.ReLU(),
                pool=nn.AdaptiveAvgPool2d(1),
                flatten=nn.Flatten(1),
                head=head,
            )
        )


def _block(before: int, width: int, stride: int, norm: str, learn_step: bool) -> nn.Module:
    first = OrderedDict(norm1=norm_layer(norm, before), relu1=nn.ReLU())
    rest = OrderedDict(
        conv1=nn.Conv2d(before, width, 3, stride, padding=1, bias=False),
        norm2=norm_layer(norm, width),
        relu2=nn.ReLU(),
        conv2=nn.Conv2d(width, width, 3, padding=1, bias=False),
    )
    if before == width and stride == 1:
        return Residual(nn.Sequential(first | rest), learn_step=learn_step)
    # A projecting shortcut reads the output of the first norm and ReLU, so these precede the block that can be dropped.
    skip = nn.Conv2d(before, width, 1, stride, bias=False)
    residual = Residual(nn.Sequential(rest), skip, learn_step=learn_step)
    return nn.Sequential(OrderedDict(pre=nn.Sequential(first), residual=residual))
