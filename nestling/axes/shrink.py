"""Build the same module with smaller layers: replace its tensors, drop blocks, correct stored sizes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import torch
from torch import Tensor, nn

from nestling.axes.axismap import AxisMap
from nestling.axes.blocks import inside, replacement
from nestling.axes.dims import resized, smaller
from nestling.axes.layers import adjust
from nestling.axes.skeleton import copy_with, tensors


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
        shape = smaller(axes.dims[name], sizes).shape if name in axes.dims else old.shape
        return torch.empty(shape, dtype=old.dtype, device="meta")

    small = copy_with(model, swap or empty)
    dropped = [block for block in axes.blocks if blocks is not None and block not in blocks]
    for block in dropped:
        if not inside(block, dropped):
            parent, _, name = block.rpartition(".")
            setattr(small.get_submodule(parent), name, replacement(small.get_submodule(block)))
    for path, module in small.named_modules():
        prefix = f"{path}." if path else ""
        below = {name: axes.dims[prefix + name] for name, _ in tensors(module) if prefix + name in axes.dims}
        adjust(module, below, lambda dim: resized(dim, sizes).size)
    return small
