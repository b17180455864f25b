"""How a convolutional net lies in memory, which decides how fast its kernels are (docs/performance.md)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

_WIDE = 256  # channels read and written from which on a convolution is faster with channels first


def fast_format(model: nn.Module) -> None:
    """Lay a model out in memory as its convolutions of images are fastest: channels last, but for wide ones.

    Its outputs stay the same up to rounding, as do the names and shapes of its tensors.

    >>> model = nn.Sequential(nn.Conv2d(3, 256, 3), nn.Conv2d(256, 256, 3))
    >>> fast_format(model)
    >>> [layer.weight.is_contiguous(memory_format=torch.channels_last) for layer in model]
    [True, False]
    >>> model(torch.zeros(1, 3, 8, 8)).is_contiguous()
    True
    """
    for module in model.modules():
        if not isinstance(module, nn.Conv2d):
            continue
        writes, reads = module.weight.shape[:2]
        if min(writes, reads) < _WIDE:
            module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        else:  # PyTorch takes the format of what is read, whatever the weights'
            module.register_forward_pre_hook(_channels_first)


def _channels_first(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(value.contiguous() if isinstance(value, Tensor) else value for value in inputs)
