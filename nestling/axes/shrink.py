"""Build the same module with smaller layers: replace its tensors, drop blocks, correct stored sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping

import torch
from torch import Tensor, nn

from nestling.axes.axismap import AxisMap
from nestling.axes.blocks import inside, stand_in
from nestling.axes.dims import Dim, Fixed, Leaf, Product
from nestling.axes.layers import adjust
from nestling.axes.skeleton import copy_with, tensors


def kept_of(dim: Dim, sizes: Mapping[str, int]) -> int:
    """Return how many units of `dim` are left when the axes in `sizes` are resized.

    >>> kept_of(Product((Leaf("heads", 4), Leaf("dim", 8))), {"dim": 2})
    8
    """
    if isinstance(dim, Fixed):
        return dim.size
    if isinstance(dim, Leaf):
        return sizes.get(dim.name, dim.size)
    parts = [kept_of(part, sizes) for part in dim.parts]
    return math.prod(parts) if isinstance(dim, Product) else sum(parts)


def shrunk(
    model: nn.Module,
    axes: AxisMap,
    sizes: Mapping[str, int],
    blocks: Collection[str] | None = None,
    swap: Callable[[str, Tensor], Tensor] | None = None,
) -> nn.Module:
    """Return a copy of `model` with the axes in `sizes` resized, and with only the blocks in `blocks`.

    Its tensors are ``swap(name, old)``, which must have the right shapes; by default they have no values.
    """

    def empty(name: str, old: Tensor) -> Tensor:
        shape = tuple(kept_of(dim, sizes) for dim in axes.dims[name]) if name in axes.dims else old.shape
        return torch.empty(shape, dtype=old.dtype, device="meta")

    small = copy_with(model, swap or empty)
    gone = [block for block in axes.blocks if blocks is not None and block not in blocks]
    for block in gone:
        if not inside(block, gone):
            parent, _, name = block.rpartition(".")
            setattr(small.get_submodule(parent), name, stand_in(small.get_submodule(block)))
    for path, module in small.named_modules():
        at = f"{path}." if path else ""
        below = {name: axes.dims[at + name] for name, _ in tensors(module) if at + name in axes.dims}
        adjust(module, below, lambda dim: kept_of(dim, sizes))
    return small
