"""`submodel` and `resize`: the same module with smaller layers."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from nestling.axes import AxisMap
from nestling.axes.blocks import stand_in
from nestling.axes.dims import Dim, Fixed, Leaf, Product
from nestling.axes.skeleton import copy_with, tensors
from nestling.cut.extract import cuts, extract, fits
from nestling.cut.layers import adjust
from nestling.cut.plan import Plan
from nestling.errors import BuildError

Build = Callable[[Plan], nn.Module]


def submodel(model: nn.Module, axes: AxisMap, plan: Plan, build: Build | None = None) -> nn.Module:
    """Return a smaller module that holds the weights `plan` keeps of `model`.

    The result is a plain module of the same classes, on the same device, in the same mode; it shares no memory
    with `model`. Its state is ``extract(axes, plan, model.state_dict())``.

    Parameters
    ----------
    model
        The whole model; it is not changed.
    axes
        What `nestling.trace` found in it.
    plan
        What to keep.
    build
        For modules whose forward has sizes written into its code: makes the smaller module from the plan, and
        the weights are loaded into it.

    Examples
    --------
    >>> import nestling
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> axes = nestling.trace(net, torch.zeros(1, 4))
    >>> submodel(net, axes, nestling.plan(axes, width=0.5))
    Sequential(
      (0): Linear(in_features=4, out_features=4, bias=True)
      (1): ReLU()
      (2): Linear(in_features=4, out_features=2, bias=True)
    )
    """
    fits(axes, model.state_dict())
    if build is None:
        return _resized(model, axes, plan, None)
    small = build(plan)
    try:
        small.load_state_dict(extract(axes, plan, model.state_dict()))
    except RuntimeError as problem:
        line = " ".join(str(problem).split())
        raise BuildError(f"build(plan) made a module that the plan's weights do not fit: {line}") from None
    return small


def resize(model: nn.Module, axes: AxisMap, plan: Plan) -> nn.Module:
    """Return the smaller module of `plan` without weights, on the meta device.

    This is for a device that has only the architecture and receives its weights: build the whole model on the meta
    device, resize it, then ``small.load_state_dict(state, assign=True)``; nothing of the whole size is allocated.

    >>> import nestling
    >>> with torch.device("meta"):
    ...     net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> axes = nestling.trace(net, torch.zeros(1, 4))
    >>> resize(net, axes, nestling.plan(axes, width=0.5))[0].weight.shape
    torch.Size([4, 4])
    """
    return _resized(model, axes, plan, "meta")


def _resized(model: nn.Module, axes: AxisMap, plan: Plan, device: str | None) -> nn.Module:
    how = cuts(axes, plan)

    def swap(name: str, old: Tensor) -> Tensor:
        source = old.detach() if device is None else torch.empty_like(old, device=device)
        if name in how:
            return how[name].take(source)
        # what is not in the map: buffers that are not saved, copied; blocks that are dropped, not worth a copy
        return source if name in axes.dims else source.clone()

    small = copy_with(model, swap)
    if plan.blocks is not None:
        for block in axes.blocks:
            if block not in plan.blocks:
                _replace(small, block)

    def kept(dim: Dim) -> int:
        if isinstance(dim, Fixed):
            return dim.size
        if isinstance(dim, Leaf):
            return sum(stop - start for start, stop in plan.runs.get(dim.name, ((0, dim.size),)))
        sizes = [kept(part) for part in dim.parts]
        return math.prod(sizes) if isinstance(dim, Product) else sum(sizes)

    for path, module in small.named_modules():
        at = f"{path}." if path else ""
        below = {name: axes.dims[at + name] for name, _ in tensors(module) if at + name in axes.dims}
        if below:
            adjust(module, below, kept)
    for module in small.modules():
        if isinstance(module, nn.RNNBase):
            module._init_flat_weights()
    return small


def _replace(model: nn.Module, path: str) -> None:
    parent, _, name = path.rpartition(".")
    owner = model.get_submodule(parent)
    setattr(owner, name, stand_in(model.get_submodule(path)))
