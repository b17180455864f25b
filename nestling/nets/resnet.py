"""The post-activation ResNets of NeFL (Kang et al., B.1, Tables 10-15) and FedMorph (Tables 7 and 9).

NeFL: ResNet18/34 have 64/128/256/512 channels, ResNet56/110 16/32/64, Wide ResNet101_2 bottlenecks of
128/256/512/1024; each block has a learnable step size, multiplied after its last norm. For CIFAR, ResNet18/34 have a
3×3 stem of stride 1 and then a max-pool; ResNet56/110 have no pool. Shortcuts that change shape are a 1×1 convolution
and a norm.

FedMorph: its ResNet18 has neither the max-pool nor step sizes (``pool=False, learn_steps=False``). That gives the
11,173,962 parameters of its Table 2, and its 556,651,520 FLOPs if a multiply-add counts as one and every normalised
value as two. Its ResNet8 has one block per stage.

Departures
- FedMorph's Table 9 lists a shortcut convolution in every block of ResNet18, its own parameter count does not: we
  follow the count. Its Table 7 does so for ResNet8, whose reported count (4,904,670) agrees with neither version: we
  follow the table, so the first block projects, too (``project_first``). Table 7 also states three input channels, but
  its data have one; and its stem of stride 1 costs far more than the 15 million FLOPs reported for it.
- The convolutions use He's normal initialisation; the papers do not state theirs.
- NeFL does not give an input size for Wide ResNet101_2; with its ImageNet stem and weights, 224 is assumed.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from torch import nn

from nestling.nets.norms import norm_layer
from nestling.nets.residual import Residual


class ResNet(nn.Sequential):
    """Images ``(batch, channels, height, width)`` → logits ``(batch, classes)``.

    Parameters
    ----------
    depths
        Blocks of each stage. Every stage after the first halves the height and width of its input.
    widths
        Channels inside the blocks of each stage; their output has ``expansion`` times as many.
    bottleneck
        Blocks of 1×1, 3×3, 1×1 convolutions instead of two of 3×3.
    expansion
        Channels of the stream per channel inside the blocks, 1 unless the blocks are bottlenecks.
    stem_width
        Channels of the stem; by default those of the first stage.
    stem_kernel, stem_stride, pool
        The first convolution, and whether a max-pool of stride 2 follows it.
    project_first
        Whether the first block has a projecting shortcut although the shape does not change.
    channels, classes, norm, learn_steps
        Input channels, output classes, the norm (see :mod:`nestling.nets.norms`), and whether step sizes are learned.

    Examples
    --------
    >>> import torch
    >>> net = ResNet(widths=(4, 8, 16, 32), pool=True)
    >>> net(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    >>> net.stages[0][0].step.shape
    torch.Size([])
    """

    def __init__(
        self,
        *,
        depths: Sequence[int] = (2, 2, 2, 2),
        widths: Sequence[int] = (64, 128, 256, 512),
        bottleneck: bool = False,
        expansion: int = 1,
        stem_width: int | None = None,
        stem_kernel: int = 3,
        stem_stride: int = 1,
        pool: bool = False,
        project_first: bool = False,
        channels: int = 3,
        classes: int = 10,
        norm: str = "bn",
        learn_steps: bool = True,
    ) -> None:
        before = widths[0] if stem_width is None else stem_width
        stem = _convolutions([_Conv(channels, before, stem_kernel, stem_stride)], norm)
        stem["relu"] = nn.ReLU()
        if pool:
            stem["pool"] = nn.MaxPool2d(3, 2, padding=1)
        stages = []
        for i, (depth, width) in enumerate(zip(depths, widths, strict=True)):
            blocks = []
            for j in range(depth):
                stride = 2 if i > 0 and j == 0 else 1
                after = width * expansion
                inside = (_bottleneck if bottleneck else _basic)(before, width, after, stride)
                project = stride > 1 or before != after or (project_first and i == j == 0)
                blocks.append(_block(inside, project, norm, learn_steps))
                before = after
            stages.append(nn.Sequential(*blocks))
        super().__init__(
            OrderedDict(
                stem=nn.Sequential(stem),
                stages=nn.Sequential(*stages),
                pool=nn.AdaptiveAvgPool2d(1),
                flatten=nn.Flatten(1),
                head=nn.Linear(before, classes),
            )
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


class _Conv(NamedTuple):
    before: int
    width: int
    kernel: int
    stride: int = 1


def _basic(before: int, width: int, after: int, stride: int) -> list[_Conv]:
    return [_Conv(before, width, 3, stride), _Conv(width, after, 3)]


def _bottleneck(before: int, width: int, after: int, stride: int) -> list[_Conv]:
    # The stride is on the 3×3 convolution, as in the published ImageNet weights.
    return [_Conv(before, width, 1), _Conv(width, width, 3, stride), _Conv(width, after, 1)]


def _convolutions(convs: Sequence[_Conv], norm: str) -> OrderedDict[str, nn.Module]:
    """Return pairs of a convolution and a norm, with a ReLU between the pairs."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for i, (before, width, kernel, stride) in enumerate(convs, start=1):
        tag = str(i) if len(convs) > 1 else ""
        layers[f"conv{tag}"] = nn.Conv2d(before, width, kernel, stride, padding=kernel // 2, bias=False)
        layers[f"norm{tag}"] = norm_layer(norm, width)
        if i < len(convs):
            layers[f"relu{tag}"] = nn.ReLU()
    return layers


def _block(inside: Sequence[_Conv], project: bool, norm: str, learn_step: bool) -> Residual:
    skip = None
    if project:
        stride = max(conv.stride for conv in inside)
        skip = nn.Sequential(_convolutions([_Conv(inside[0].before, inside[-1].width, 1, stride)], norm))
    body = nn.Sequential(_convolutions(inside, norm))
    return Residual(body, skip, after=nn.ReLU(), learn_step=learn_step)
