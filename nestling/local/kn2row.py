"""Convolutions of small images as matrix products, one for every place of the kernel.

The last layers of wide nets see images of a few pixels through kernels of megabytes. PyTorch's convolutions are made
for larger images: they bring such a kernel into an order of their own in every step, and multiply it by the padding,
too, which is a third of all products where 3×3 places meet 4×4 pixels. Here each place of the kernel is one product
with the pixels that it meets. The field calls that kn2row (Vasudevan et al., Parallel Multi Channel Convolution using
General Matrix Multiplication, 2017); what it gains is in docs/performance.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

Pair = tuple[int, int]


@dataclass(frozen=True)
class _Place:
    """A place of a kernel, and which pixels it reads and adds to: indices of (images, height, width, channels)."""

    at: tuple[slice, slice, int, int]
    reads: tuple[slice, slice, slice]
    adds: tuple[slice, slice, slice]


@dataclass(frozen=True)
class _Geometry:
    """The height and width of what a convolution writes, and all places of its kernel that meet a pixel."""

    size: Pair
    places: tuple[_Place, ...]


class Kn2row(nn.Conv2d):
    """A convolution for which `can_be_products` holds, as products; its tensors have the names and shapes they had."""

    @staticmethod
    def become(layer: nn.Conv2d) -> None:
        """Turn a layer into one of this kind, with its weights in memory as the products read them.

        >>> layer, images = nn.Conv2d(8, 4, 3, padding=1), torch.randn(2, 8, 3, 3)
        >>> before = layer(images)
        >>> Kn2row.become(layer)
        >>> torch.allclose(layer(images), before, atol=1e-6), type(layer).__name__
        (True, 'Kn2row')
        """
        layer.weight.data = layer.weight.data.permute(2, 3, 0, 1).contiguous().permute(2, 3, 0, 1)
        layer.__class__ = Kn2row

    def forward(self, input: Tensor) -> Tensor:
        """Map (images, channels, height, width) to the same of the output, channels last in memory."""
        if input.dim() != 4:  # a single image, without a dimension for more
            return super().forward(input)
        geometry = _geometry(input.shape[2:], self.weight.shape[2:], self.stride, self.padding)
        out: Tensor = _Products.apply(input, self.weight, self.bias, geometry)
        return out


def can_be_products(layer: nn.Conv2d) -> bool:
    """Whether a layer is a plain convolution: no groups, no dilation, padded with a number of zeros.

    >>> can_be_products(nn.Conv2d(4, 4, 3, padding=1)), can_be_products(nn.Conv2d(4, 4, 3, groups=2))
    (True, False)
    """
    plain = type(layer) is nn.Conv2d and layer.groups == 1 and layer.dilation == (1, 1)
    return plain and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)


class _Products(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor, bias: Tensor | None, geometry: _Geometry) -> Tensor:
        pixels = images.permute(0, 2, 3, 1).contiguous()
        result = pixels.new_zeros(len(pixels), *geometry.size, len(weight))
        for place in geometry.places:
            added = result[place.adds]
            added += torch.mm(pixels[place.reads].flatten(0, 2), weight[place.at].t()).view(added.shape)
        if bias is not None:
            result += bias
        ctx.save_for_backward(pixels, weight)
        ctx.places = geometry.places
        return result.permute(0, 3, 1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        pixels, weight = ctx.saved_tensors
        slope = slope.permute(0, 2, 3, 1).contiguous()
        of_images, of_weight, of_bias = ctx.needs_input_grad[:3]
        images = torch.zeros_like(pixels) if of_images else None
        all_meet = len(ctx.places) == weight.shape[2:].numel()  # or else some of the kernel meets padding alone
        weights = (torch.empty_like if all_meet else torch.zeros_like)(weight) if of_weight else None
        for place in ctx.places:
            came = slope[place.adds].flatten(0, 2)
            if weights is not None:
                torch.mm(came.t(), pixels[place.reads].flatten(0, 2), out=weights[place.at])
            if images is not None:
                added = images[place.reads]
                added += torch.mm(came, weight[place.at]).view(added.shape)
        bias = slope.sum((0, 1, 2)) if of_bias else None
        return None if images is None else images.permute(0, 3, 1, 2), weights, bias, None


@cache
def _geometry(image: Pair, kernel: Pair, stride: Pair, padding: Pair) -> _Geometry:
    sizes = list(zip(image, kernel, stride, padding, strict=True))
    height, width = ((size + 2 * pad - places) // step + 1 for size, places, step, pad in sizes)
    rows, columns = (_met(*along, result) for along, result in zip(sizes, (height, width), strict=True))
    every = slice(None)
    places = tuple(
        _Place((every, every, row, column), (every, reads, reads_too), (every, adds, adds_too))
        for row, reads, adds in rows
        for column, reads_too, adds_too in columns
    )
    return _Geometry((height, width), places)


def _met(image: int, kernel: int, stride: int, padding: int, result: int) -> list[tuple[int, slice, slice]]:
    """Along one dimension: the places that meet a pixel, what each reads, and what it adds to.

    >>> _met(image=4, kernel=3, stride=1, padding=1, result=4)[0]
    (0, slice(0, 3, 1), slice(1, 4, None))
    """
    found = []
    for place in range(kernel):
        first = max(0, -((place - padding) // stride))  # rounded up: before it, the place meets padding
        last = min(result - 1, (image - 1 + padding - place) // stride)
        if first <= last:
            start = first * stride + place - padding
            found.append((place, slice(start, last * stride + place - padding + 1, stride), slice(first, last + 1)))
    return found
