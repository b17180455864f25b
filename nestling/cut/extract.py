"""`extract`: cut the state of a sub-model out of the state of the whole model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from torch import Tensor

from nestling.axes import AxisMap
from nestling.axes.dims import Leaf
from nestling.cut.plan import Plan, Runs
from nestling.cut.slices import Cut, cut
from nestling.errors import StateError, nearest

State = Mapping[str, Tensor]


def extract(axes: AxisMap, plan: Plan, state: State) -> dict[str, Tensor]:
    """Return the state of the sub-model of `plan`: every tensor cut, without dropped blocks.

    Tensors are new and contiguous; names tied in the model share one tensor in the result.

    >>> import torch, nestling
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> axes = nestling.trace(net, torch.zeros(1, 4))
    >>> small = extract(axes, nestling.plan(axes, width=0.25), net.state_dict())
    >>> {name: tuple(tensor.shape) for name, tensor in small.items()}
    {'0.weight': (2, 4), '0.bias': (2,), '2.weight': (2, 2), '2.bias': (2,)}
    """
    check_state(axes, state)
    small: dict[str, Tensor] = {}
    for name, place in cuts(axes, plan).items():
        first = axes.tied.get(name, name)
        small[name] = small[first] if first in small else place.take(state[name if name in state else first].detach())
    return small


def cuts(axes: AxisMap, plan: Plan, frozen: bool = False) -> Mapping[str, Cut]:
    """Return the cut of every tensor in the sub-model of `plan`, by name; results are cached.

    >>> import torch, nestling
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> axes = nestling.trace(net, torch.zeros(1, 4))
    >>> cuts(axes, nestling.plan(axes, width=0.5))["2.weight"].shape
    (2, 4)
    """
    return _cuts(Same(axes), plan, frozen)


class Same:
    """An axis map as a cache key: compared by identity, because comparing two maps would cost more than the cut."""

    __slots__ = ("axes",)

    def __init__(self, axes: AxisMap) -> None:
        self.axes = axes

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.axes is other.axes

    def __hash__(self) -> int:
        return id(self.axes)


@lru_cache(maxsize=256)
def _cuts(same: Same, plan: Plan, frozen: bool) -> Mapping[str, Cut]:
    axes = same.axes
    plan.fit(axes, frozen)
    dropped = set() if plan.blocks is None else dropped_names(axes, plan.blocks)

    def kept(leaf: Leaf) -> Runs:
        return plan.runs.get(leaf.name, ((0, leaf.size),))

    alike: dict[object, Cut] = {}  # many tensors of a deep net have the same dims
    result = {}
    for name, dims in axes.dims.items():
        if name not in dropped:
            result[name] = alike[dims] if dims in alike else alike.setdefault(dims, cut(dims, kept))
    return result


def dropped_names(axes: AxisMap, blocks: Iterable[str]) -> set[str]:
    """Return the state names that are dropped when only `blocks` are kept."""
    keep = set(blocks)
    return {name for block, names in axes.blocks.items() if block not in keep for name in names}


def check_state(axes: AxisMap, state: State) -> None:
    """Raise `StateError` unless `state` is a state of the whole model of `axes`."""
    for name, dims in axes.dims.items():
        tensor = state.get(name, state.get(axes.tied.get(name, "")))
        if tensor is None:
            raise StateError(f"the state of the whole model lacks the tensor {name!r}")
        if tuple(tensor.shape) != dims.shape:
            raise StateError(f"the tensor {name!r} has shape {tuple(tensor.shape)}, but the model's is {dims.shape}")
    for name in state:
        if name not in axes.dims:
            raise StateError(f"the state holds {name!r}, which the model does not have{nearest(name, axes.dims)}")
