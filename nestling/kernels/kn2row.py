"""Convolutions of small images as matrix products, one for every position of the kernel.

In the last layers of wide nets, images have few pixels and kernels have megabytes. PyTorch's convolutions are made for
larger images: they reorder such a kernel in every step, and multiply it by the padding too, which is a third of all
products for 3×3 kernels and 4×4 pixels. Here each position of the kernel is one product with the pixels that it covers,
known as kn2row (Vasudevan et al., Parallel Multi Channel Convolution using General Matrix Multiplication, 2017);
docs/performance.md has the gains.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from nestling.safe_kernels import SafeKernels, unguard
from nestling.torch_private import knows_transforms, transforms_active

Pair = tuple[int, int]
Derivatives = tuple[Tensor | None, Tensor | None, Tensor | None]  # of images, weight and bias


@dataclass(frozen=True)
class _Place:
    """A kernel position, and the pixels that it reads and adds to: indices of (images, height, width, channels)."""

    at: tuple[slice, slice, int, int]
    reads: tuple[slice, slice, slice]
    adds: tuple[slice, slice, slice]


@dataclass(frozen=True)
class _Geometry:
    """The output height and width of a convolution, and all positions of its kernel that cover a pixel."""

    stride: Pair
    padding: Pair
    size: Pair
    places: tuple[_Place, ...]


class Kn2row(nn.Conv2d):
    """A convolution for which `can_be_products` holds, as products; names and shapes of its tensors are unchanged."""

    @staticmethod
    def become(layer: nn.Conv2d) -> None:
        """Turn a layer into one of this class, with its weights in the memory order of the products.

        >>> layer, images = nn.Conv2d(8, 4, 3, padding=1), torch.randn(2, 8, 3, 3)
        >>> before = layer(images)
        >>> Kn2row.become(layer)
        >>> torch.allclose(layer(images), before, atol=1e-6), type(layer).__name__
        (True, 'Kn2row')
        """
        layer.weight.data = layer.weight.data.permute(2, 3, 0, 1).contiguous().permute(2, 3, 0, 1)
        layer.__class__ = Kn2row
        unguard(layer)  # products are safe

    def forward(self, input: Tensor) -> Tensor:
        """Return the convolution of (images, channels, height, width), channels last in memory."""
        if input.dim() != 4 or transforms_active():  # one image; inside of torch.func.vmap
            with SafeKernels():
                return super().forward(input)
        geometry = _geometry(input.shape[2:], self.weight.shape[2:], self.stride, self.padding)
        out: Tensor = _Products.apply(input, self.weight, self.bias, geometry)
        return out


def can_be_products(layer: nn.Conv2d) -> bool:
    """Return whether a layer is a plain convolution: no groups, no dilation, a number of zeros as padding.

    >>> can_be_products(nn.Conv2d(4, 4, 3, padding=1)), can_be_products(nn.Conv2d(4, 4, 3, groups=2))
    (True, False)
    """
    plain = type(layer) is nn.Conv2d and layer.groups == 1 and layer.dilation == (1, 1)
    return plain and layer.padding_mode == "zeros" and not isinstance(layer.padding, str) and knows_transforms()


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
        ctx.save_for_backward(images, weight)
        ctx.geometry = geometry
        return result.permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        images, weight = ctx.saved_tensors
        derivatives = _differentiable_derivatives if torch.is_grad_enabled() else _derivatives
        return *derivatives(slope, images, weight, ctx.geometry, ctx.needs_input_grad[:3]), None


def _derivatives(
    slope: Tensor, images: Tensor, weight: Tensor, geometry: _Geometry, wanted: tuple[bool, bool, bool]
) -> Derivatives:
    slope, pixels = (one.permute(0, 2, 3, 1).contiguous() for one in (slope, images))
    of_pixels = torch.zeros_like(pixels) if wanted[0] else None
    all_used = len(geometry.places) == weight.shape[2:].numel()  # otherwise some positions cover only padding
    of_weight = (torch.empty_like if all_used else torch.zeros_like)(weight) if wanted[1] else None
    for place in geometry.places:
        came = slope[place.adds].flatten(0, 2)
        if of_weight is not None:
            torch.mm(came.t(), pixels[place.reads].flatten(0, 2), out=of_weight[place.at])
        if of_pixels is not None:
            added = of_pixels[place.reads]
            added += torch.mm(came, weight[place.at]).view(added.shape)
    of_images = None if of_pixels is None else of_pixels.permute(0, 3, 1, 2)
    return of_images, of_weight, slope.sum((0, 1, 2)) if wanted[2] else None


def _differentiable_derivatives(
    slope: Tensor, images: Tensor, weight: Tensor, geometry: _Geometry, wanted: tuple[bool, bool, bool]
) -> Derivatives:
    """Return the same by PyTorch's kernels, which can be differentiated again: for second derivatives."""
    derivatives: Derivatives = torch.ops.aten.convolution_backward(
        *(slope, images, weight, [len(weight)]),
        *(geometry.stride, geometry.padding, (1, 1), False, (0, 0), 1, wanted),
    )
    return derivatives


@cache
def _geometry(image: Pair, kernel: Pair, stride: Pair, padding: Pair) -> _Geometry:
    sizes = list(zip(image, kernel, stride, padding, strict=True))
    height, width = ((size + 2 * pad - places) // step + 1 for size, places, step, pad in sizes)
    rows, columns = (_covered(*along, result) for along, result in zip(sizes, (height, width), strict=True))
    every = slice(None)
    places = tuple(
        _Place((every, every, row, column), (every, reads, reads_too), (every, adds, adds_too))
        for row, reads, adds in rows
        for column, reads_too, adds_too in columns
    )
    return _Geometry(stride, padding, (height, width), places)


def _covered(image: int, kernel: int, stride: int, padding: int, result: int) -> list[tuple[int, slice, slice]]:
    """Return the kernel positions of one dimension that cover a pixel, with the pixels that each reads and adds to.

    >>> _covered(image=4, kernel=3, stride=1, padding=1, result=4)[0]
    (0, slice(0, 3, 1), slice(1, 4, None))
    """
    covered = []
    for place in range(kernel):
        first = max(0, -((place - padding) // stride))  # rounded up: before it, the position covers padding
        last = min(result - 1, (image - 1 + padding - place) // stride)
        if first <= last:
            start = first * stride + place - padding
            covered.append((place, slice(start, last * stride + place - padding + 1, stride), slice(first, last + 1)))
    return covered
