"""How a convolutional net lies in memory and computes, which decides how fast it is (docs/performance.md)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from nestling.draws import drawing
from nestling.kernels.kn2row import Kn2row, can_be_products
from nestling.safe_kernels import guard

_WIDE = 256  # channels read and written from which on a convolution is faster with channels first,
_FEW = 16  # or, where it writes images of no more pixels than these, as products


def set_memory_format(model: nn.Module, *example: Tensor) -> None:
    """Lay a model out in memory as its convolutions of images are fastest: channels last, but for wide ones.

    Its outputs stay the same up to rounding, as do the names and shapes of its tensors.

    Parameters
    ----------
    model
        What is changed, in place.
    example
        Inputs of it, which tell how small images become on the way; without any, no convolution becomes products.

    Examples
    --------
    >>> model = nn.Sequential(nn.Conv2d(3, 256, 3), nn.Conv2d(256, 256, 3), nn.Conv2d(256, 256, 3))
    >>> set_memory_format(model, torch.zeros(1, 3, 9, 9))
    >>> [layer.weight.is_contiguous(memory_format=torch.channels_last) for layer in model]
    [True, False, False]
    >>> [type(layer).__name__ for layer in model]
    ['Conv2d', 'Conv2d', 'Kn2row']
    """
    guard(model)  # some kernels for channels last write where they must not
    layers = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    wide = [layer for layer in layers if min(layer.weight.shape[:2]) >= _WIDE]
    pixels = _pixels(model, wide, example) if wide and example else {}
    for layer in layers:
        if layer not in wide:
            layer.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        elif pixels.get(layer, _FEW + 1) <= _FEW and can_be_products(layer):
            Kn2row.become(layer)
        else:  # PyTorch takes the format of what is read, whatever the weights'
            layer.register_forward_pre_hook(_channels_first)


@torch.no_grad()
def _pixels(model: nn.Module, layers: list[nn.Conv2d], example: tuple[Tensor, ...]) -> dict[nn.Module, int]:
    """How many pixels the images have that layers write, the largest where a layer is used several times."""
    found: dict[nn.Module, int] = {}

    def see(layer: nn.Module, _: Any, output: Tensor) -> None:
        found[layer] = max(found.get(layer, 0), output.shape[-2] * output.shape[-1])

    like = layers[0].weight
    given = [value.to(like if value.is_floating_point() else like.device) for value in example]
    hooks = [layer.register_forward_hook(see) for layer in layers]
    training = model.training
    try:
        with drawing(torch.Generator().manual_seed(0)):  # whatever a forward draws, the caller's numbers stay
            model.eval()(*given)
    finally:
        model.train(training)
        for hook in hooks:
            hook.remove()
    return found


def _channels_first(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(value.contiguous() if isinstance(value, Tensor) else value for value in inputs)
