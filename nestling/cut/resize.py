"""`submodel` and `resize`: the same module with smaller layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from nestling.axes import AxisMap
from nestling.axes.blocks import inside
from nestling.axes.dims import smaller
from nestling.axes.shrink import shrunk
from nestling.cut.extract import check_state, cuts, extract
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
        Its axes, from `nestling.trace`.
    plan
        What to keep.
    build
        For modules with hard-coded sizes: builds the smaller module from the plan, and the weights are loaded into it.

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
    check_state(axes, model.state_dict())
    if build is None:
        return _sliced(model, axes, plan)
    small = build(plan)
    try:
        small.load_state_dict(extract(axes, plan, model.state_dict()))
    except RuntimeError as problem:
        lines = [line.strip() for line in str(problem).splitlines()]
        raise BuildError(f"build(plan) made a module that the plan's weights do not fit: {lines[-1][:200]}") from None
    return small


def resize(model: nn.Module, axes: AxisMap, plan: Plan) -> nn.Module:
    """Return the smaller module of `plan` without weights, on the meta device.

    This is for a device that knows the architecture and receives the weights: build the whole model on the meta device,
    resize it, then ``small.load_state_dict(state, assign=True)``; nothing of the whole size is allocated.

    >>> import nestling
    >>> with torch.device("meta"):
    ...     net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> axes = nestling.trace(net, torch.zeros(1, 4))
    >>> resize(net, axes, nestling.plan(axes, width=0.5))[0].weight.shape
    torch.Size([4, 4])
    """
    plan.fit(axes)
    return shrunk(model, axes, plan.sizes, plan.blocks)


def axes_of(axes: AxisMap, plan: Plan) -> AxisMap:
    """Return the axes of the sub-model of `plan`: the same names, with their reduced sizes.

    >>> import nestling
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> axes = nestling.trace(net, torch.zeros(1, 4))
    >>> axes_of(axes, nestling.plan(axes, width=0.5)).axes
    {'model.0': 4}
    """
    plan.fit(axes)
    table = {name: replace(axis, size=plan.sizes.get(name, axis.size)) for name, axis in axes.table.items()}
    left = {name: smaller(axes.dims[name], plan.sizes) for name in cuts(axes, plan)}
    gone = [name for name in axes.blocks if plan.blocks is not None and name not in plan.blocks]
    blocks = {name: names for name, names in axes.blocks.items() if name not in gone and not inside(name, gone)}
    tied = {name: first for name, first in axes.tied.items() if name in left and first in left}
    return AxisMap(table, left, blocks, tied).pruned()


def _sliced(model: nn.Module, axes: AxisMap, plan: Plan) -> nn.Module:
    slices = cuts(axes, plan)
    aliases: dict[str, list[str]] = {}
    for name, first in axes.tied.items():
        aliases.setdefault(first, []).append(name)

    def swap(name: str, old: Tensor) -> Tensor:
        # a tensor of a dropped block may be kept under another name
        for label in (name, *aliases.get(name, ())):
            if label in slices:
                return slices[label].take(old.detach())
        return torch.empty_like(old, device="meta") if name in axes.dims else old.detach().clone()

    return shrunk(model, axes, plan.sizes, plan.blocks, swap)
