"""Choose which units of an axis to keep: the choice in which the papers differ.

A picker is a function ``(axis name, size, count) → indices``. Everything that must be cut together is one axis, so any
choice of units is consistent.
"""

from __future__ import annotations

import random as _random
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from nestling.axes import AxisMap
from nestling.axes.dims import Dim, Leaf, Product, Sum
from nestling.errors import PlanError, StateError, nearest

Picker = Callable[[str, int, int], Iterable[int]]
Width = float | Mapping[str, float]


def prefix(_name: str, _size: int, count: int) -> Iterable[int]:
    """Keep the first units (HeteroFL, FjORD, NeFL).

    >>> list(prefix("conv1", 8, 3))
    [0, 1, 2]
    """
    return range(count)


def rolling(round: int, step: int = 1) -> Picker:
    """Keep a window that moves `step` units a round and wraps around, each axis by its own size (FedRolex, Eq. 4).

    >>> sorted(rolling(round=6)("conv1", 8, 4))
    [0, 1, 6, 7]
    """
    return lambda _name, size, count: [(round * step + k) % size for k in range(count)]


def random(seed: int) -> Picker:
    """Keep a random set of each axis (Federated Dropout); the same seed and name give the same set.

    >>> random(seed=1)("conv1", 8, 4) == random(seed=1)("conv1", 8, 4)
    True
    """
    return lambda name, size, count: _random.Random(f"{seed}/{name}").sample(range(size), count)


def by_importance(scores: Mapping[str, Tensor]) -> Picker:
    """Keep the units with the highest scores; among equal scores, the first.

    >>> sorted(by_importance({"conv1": torch.tensor([0.1, 3.0, 2.0])})("conv1", 3, 2))
    [1, 2]
    """

    def choose(name: str, size: int, count: int) -> Iterable[int]:
        values = _per_unit(scores, name, size, "scores").double()
        if bool(values.isnan().any()):
            raise PlanError(f"the scores of axis {name!r} hold values that are not numbers")
        ranked = values.argsort(descending=True, stable=True)
        chosen: list[int] = ranked[:count].tolist()
        return chosen

    return choose


def by_mask(mask: Mapping[str, Tensor]) -> Picker:
    """Keep the units where a boolean mask is true, whatever the width; axes without a mask are kept whole.

    >>> by_mask({"conv1": torch.tensor([False, True, True])})("conv1", 3, 3)
    [1, 2]
    """

    def choose(name: str, size: int, _count: int) -> Iterable[int]:
        if name not in mask:
            return range(size)
        values = _per_unit(mask, name, size, "mask")
        if values.dtype != torch.bool:
            raise PlanError(f"the mask of axis {name!r} must be boolean (such as v >= 0), not {values.dtype}")
        chosen: list[int] = values.nonzero().flatten().tolist()
        return chosen

    return choose


def picker(
    pick: str | Picker,
    *,
    round: int = 0,
    step: int = 1,
    seed: int = 0,
    scores: Mapping[str, Tensor] | None = None,
    mask: Mapping[str, Tensor] | None = None,
) -> Picker:
    """Return the picker called `pick`, with the arguments it needs.

    >>> sorted(picker("rolling", round=6)("conv1", 8, 4))
    [0, 1, 6, 7]
    """
    if callable(pick):
        return pick
    if pick == "importance" and scores is None:
        raise PlanError("pick='importance' needs scores={axis: one score per unit}; see nestling.importance")
    if pick == "mask" and mask is None:
        raise PlanError("pick='mask' needs mask={axis: one boolean per unit}")
    known: dict[str, Picker] = {
        "prefix": prefix,
        "rolling": rolling(round, step),
        "random": random(seed),
        "importance": by_importance(scores or {}),
        "mask": by_mask(mask or {}),
    }
    if pick not in known:
        raise PlanError(f"there is no pick {pick!r}{nearest(pick, known)}")
    return known[pick]


def importance(axes: AxisMap, state: Mapping[str, Tensor], power: float = 2.0) -> dict[str, Tensor]:
    """Score every unit of every axis by the magnitude of all its weights: Σ |w|^power.

    Returns
    -------
    dict
        Axis name → scores of shape (size,), float64, as ``plan(pick="importance", scores=…)`` takes them.

    Examples
    --------
    >>> import nestling
    >>> net = torch.nn.Sequential(torch.nn.Linear(2, 3, bias=False), torch.nn.Linear(3, 1, bias=False))
    >>> for weight in net.parameters():
    ...     _ = torch.nn.init.ones_(weight)
    >>> importance(nestling.trace(net, torch.zeros(1, 2)), net.state_dict())
    {'model.0': tensor([3., 3., 3.], dtype=torch.float64)}
    """
    scores = {name: torch.zeros(size, dtype=torch.float64) for name, size in axes.axes.items()}
    for name, dims in axes.dims.items():
        if name in axes.tied or name not in state or not state[name].is_floating_point():
            continue
        if tuple(state[name].shape) != dims.shape:
            raise StateError(
                f"the tensor {name!r} has shape {tuple(state[name].shape)}, but the model's is {dims.shape}"
            )
        energy = state[name].double().abs().pow(power)
        for place, dim in enumerate(dims):
            others = [k for k in range(len(dims)) if k != place]
            _fold(dim, energy.sum(others) if others else energy, scores)
    return scores


def _fold(dim: Dim, energy: Tensor, scores: dict[str, Tensor]) -> None:
    """Add the energy of every index along `dim` to the units it belongs to."""
    if isinstance(dim, Leaf):
        if dim.name in scores:
            scores[dim.name] += energy
    elif isinstance(dim, Product):
        view = energy.view([part.size for part in dim.parts])
        for place, part in enumerate(dim.parts):
            others = [k for k in range(view.dim()) if k != place]
            _fold(part, view.sum(others), scores)
    elif isinstance(dim, Sum):
        for part, segment in zip(dim.parts, energy.split([part.size for part in dim.parts]), strict=True):
            _fold(part, segment, scores)


def _per_unit(values: Mapping[str, Tensor], name: str, size: int, what: str) -> Tensor:
    if name not in values:
        raise PlanError(f"the {what} say nothing of axis {name!r}{nearest(name, values)}")
    if values[name].shape != (size,):
        raise PlanError(f"the {what} of axis {name!r} have shape {tuple(values[name].shape)}, not ({size},)")
    return values[name]
