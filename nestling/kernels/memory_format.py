"""The fastest memory format and kernels for a convolutional net (docs/performance.md)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from nestling.draws import drawing
from nestling.kernels.kn2row import Kn2row, can_be_products
from nestling.model_inputs import Inputs, forward, mapped
from nestling.safe_kernels import guard

_WIDE = 256  # least input and output channels with which a convolution is faster with channels first
_FEW = 16  # most output pixels with which a wide convolution is fastest as matrix products


def set_memory_format(model: nn.Module, example: Inputs = None) -> None:
    """Give the image convolutions of a model the fastest memory format: channels last, except for wide ones.

    Its outputs stay the same up to rounding, as do the names and shapes of its tensors.

    Parameters
    ----------
    model
        The model, which is changed in place.
    example
        Model inputs, for finding the image sizes inside; without them, no convolution becomes matrix products.

    Examples
    --------
    >>> model = nn.Sequential(nn.Conv2d(3, 256, 3), nn.Conv2d(256, 256, 3), nn.Conv2d(256, 256, 3))
    >>> set_memory_format(model, torch.zeros(1, 3, 9, 9))
    >>> [layer.weight.is_contiguous(memory_format=torch.channels_last) for layer in model]
    [True, False, False]
    >>> [type(layer).__name__ for layer in model]
    ['Conv2d', 'Conv2d', 'Kn2row']
    """
    guard(model)  # some kernels for channels last write outside of their memory
    layers = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    wide = [layer for layer in layers if min(layer.weight.shape[:2]) >= _WIDE]
    pixels = _pixels(model, wide, example) if wide and example is not None else {}
    for layer in layers:
        if layer not in wide:
            layer.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        elif pixels.get(layer, _FEW + 1) <= _FEW and can_be_products(layer):
            Kn2row.become(layer)
        else:  # PyTorch uses the format of the input, whatever that of the weights
            layer.register_forward_pre_hook(_channels_first)


@torch.no_grad()
def _pixels(model: nn.Module, layers: list[nn.Conv2d], example: Inputs) -> dict[nn.Module, int]:
    """Return the number of output pixels of layers; the largest if a layer is used several times."""
    pixels: dict[nn.Module, int] = {}

    def record(layer: nn.Module, _: Any, output: Tensor) -> None:
        pixels[layer] = max(pixels.get(layer, 0), output.shape[-2] * output.shape[-1])

    weight = layers[0].weight
    inputs = mapped(lambda value: value.to(weight if value.is_floating_point() else weight.device), example)
    hooks = [layer.register_forward_hook(record) for layer in layers]
    training = model.training
    try:
        with drawing(torch.Generator().manual_seed(0)):  # leaves PyTorch's own generator unchanged
            forward(model.eval(), inputs)
    finally:
        model.train(training)
        for hook in hooks:
            hook.remove()
    return pixels


def _channels_first(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(value.contiguous() if isinstance(value, Tensor) else value for value in inputs)
