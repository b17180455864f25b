"""A ResNet with a classifier after every stage, as DepthFL trains it (Kim et al., ICLR 2023).

All classifiers but the last have a bottleneck in front of them: a 1×1 convolution to the channels of the last
stage, a norm and a ReLU. Up to the last classifier the net is FedMorph's ResNet18, without step sizes.

Every stage is *inside* the stage before it, as its ``deeper``, and from the second on each is a block that can be
dropped. So dropping one drops all that follow, and the rest is a complete net of fewer stages.

Departures
- NeFL's description of DepthFL mentions "an auxiliary bottleneck layer" and "an independent classifier" without their
  sizes: these are the smallest with which all classifiers read the same number of channels.
"""

from collections import OrderedDict
from collections.abc import Sequence

from torch import Tensor, nn

from nestling.nets.norms import norm_layer
from nestling.nets.resnet import ResNet


class Exits(nn.Module):
    """Images ``(batch, channels, height, width)`` → a tuple of logits ``(batch, classes)``, one for each stage.

    If stages are dropped, the tuple is as long as before: the last logits, the same tensor, are repeated for those
    that are missing.

    Parameters
    ----------
    depths, widths
        Blocks and channels of each stage. Every stage after the first halves the height and width of its input.
    pool
        Whether a max-pool of stride 2 follows the first convolution.
    channels, classes, norm
        Input channels, output classes, and the norm (see :mod:`nestling.nets.norms`).

    Examples
    --------
    >>> import torch
    >>> net = Exits(depths=(1, 1, 1), widths=(4, 8, 16))
    >>> [logits.shape for logits in net(torch.zeros(2, 3, 32, 32))]
    [torch.Size([2, 10]), torch.Size([2, 10]), torch.Size([2, 10])]
    >>> net.deeper.deeper = net.deeper.deeper.dropped()
    >>> first, second, third = net(torch.zeros(2, 3, 32, 32))
    >>> first is second, second is third
    (False, True)
    """

    def __init__(
        self,
        *,
        depths: Sequence[int] = (2, 2, 2, 2),
        widths: Sequence[int] = (64, 128, 256, 512),
        pool: bool = False,
        channels: int = 3,
        classes: int = 10,
        norm: str = "bn",
    ) -> None:
        super().__init__()
        net = ResNet(
            depths=depths, widths=widths, pool=pool, channels=channels, classes=classes, norm=norm, learn_steps=False
        )
        parts = OrderedDict(net.named_children())
        self.stem = parts.pop("stem")
        stages = [
            nn.Sequential(*(_Block(*block.children()) for block in stage.children()))
            for stage in parts.pop("stages").children()
        ]
        exits = [_exit(width, widths[-1], classes, norm) for width in widths[:-1]]
        exits.append(nn.Sequential(parts))  # the remaining layers are the classifier of the whole net
        deeper: Stage | None = None
        for stage, classifier in zip(stages[:0:-1], exits[:0:-1], strict=True):
            deeper = Stage(stage, classifier, deeper)
        self.blocks = stages[0]
        self.exit = exits[0]
        self.deeper: nn.Module | None = deeper

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Classify after every stage."""
        x = self.blocks(self.stem(images))
        logits: tuple[Tensor, ...] = (self.exit(x),)
        if self.deeper is not None:
            logits = self.deeper(x, logits)
        return logits


class Stage(nn.Module):
    """A stage with its classifier and all stages after it: one block that can be dropped."""

    def __init__(self, blocks: nn.Module, classifier: nn.Module, deeper: "Stage | None") -> None:
        super().__init__()
        self.blocks = blocks
        self.exit = classifier
        self.deeper: nn.Module | None = deeper

    def forward(self, x: Tensor, logits: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Append the logits of this stage, and of the stages after it, to those of earlier stages."""
        x = self.blocks(x)
        logits = (*logits, self.exit(x))
        if self.deeper is not None:
            logits = self.deeper(x, logits)
        return logits

    def dropped(self) -> nn.Module:
        """Return the module that replaces this stage when it is dropped: the end of the net."""
        return End(
            sum(module.stages if isinstance(module, End) else isinstance(module, Stage) for module in self.modules())
        )


class End(nn.Module):
    """Replaces the last ``stages`` of a net: computes nothing and repeats the logits before them.

    >>> End(2)(None, ("a", "b"))
    ('a', 'b', 'b', 'b')
    """

    def __init__(self, stages: int) -> None:
        super().__init__()
        self.stages = stages

    def forward(self, _x: Tensor, logits: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return the logits, with the last of them repeated once per dropped stage."""
        return logits + logits[-1:] * self.stages


class _Block(nn.Module):
    """A `Residual` without a step size and without ``dropped``: it can only be dropped with its stage."""

    def __init__(self, body: nn.Module, skip: nn.Module, after: nn.Module) -> None:
        super().__init__()
        self.body, self.skip, self.after = body, skip, after

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.after(self.skip(x) + self.body(x))
        return out


def _exit(before: int, width: int, classes: int, norm: str) -> nn.Sequential:
    """Return the bottleneck and the classifier after a stage."""
    bottleneck = nn.Conv2d(before, width, 1, bias=False)
    nn.init.kaiming_normal_(bottleneck.weight, mode="fan_out", nonlinearity="relu")  # as in the rest of the net
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        conv=bottleneck,
        norm=norm_layer(norm, width),
        relu=nn.ReLU(),
        pool=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(1),
        head=nn.Linear(width, classes),
    )
    return nn.Sequential(layers)
