"""Paths: nested families of plans, from the smallest sub-model of a model to the whole.

Every plan of a path lies inside the next one, so costs grow from step to step, and the largest plan that meets a budget
is found by bisection.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from functools import lru_cache
from typing import Literal, Protocol

import numpy as np

from nestling.axes import AxisMap
from nestling.axes.block_runs import Runs, block_runs, nested_pair
from nestling.cut.plan import Plan, plan
from nestling.errors import BudgetError, nearest

_RATIOS = 10_000  # ratios of a RatioPath: with four decimals, so that they are short names of levels

PathName = Literal["balanced", "width", "depth"]


class PlanPath(Protocol):
    """A family of plans, numbered from 0 (the smallest) to `steps` (the whole model)."""

    @property
    def steps(self) -> int:
        """The number of the last plan."""

    def plan(self, step: int) -> Plan:
        """Return the plan of a step."""

    def ratio(self, step: int) -> float:
        """Return the position of a step in (0, 1]: the share of every axis that its plan keeps, about or exactly."""


class RatioPath:
    """The plans of a function of the ratio, at the ratios 0.0001, 0.0002, …, 1.

    It gives the levels that methods train: `make` is `nestling.plan` for prefixes, or the plan of a method. The path
    begins with the smallest ratio for which `make` does not raise `refused`.

    Examples
    --------
    >>> import torch, nestling
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> axes = nestling.trace(net, torch.zeros(1, 4))
    >>> path = RatioPath(lambda ratio: nestling.plan(axes, ratio))
    >>> path.ratio(4999), path.plan(4999).sizes
    (0.5, {'model.0': 4})
    """

    def __init__(self, make: Callable[[float], Plan], refused: type[Exception] | tuple[()] = ()) -> None:
        self._make, self._refused = make, refused
        self._first = 1 if self._exists(1) else bisect_left(range(_RATIOS), True, lo=2, key=self._exists)

    def _exists(self, number: int) -> bool:
        try:
            self._make(number / _RATIOS)
        except self._refused:
            return False
        return True

    @property
    def steps(self) -> int:
        """The number of the last plan."""
        return _RATIOS - self._first

    def ratio(self, step: int) -> float:
        """Return the ratio of a step."""
        return (step + self._first) / _RATIOS

    def plan(self, step: int) -> Plan:
        """Return the plan of a step."""
        return self._make(self.ratio(step))


class BalancedPath:
    """Plans that cut width and depth alike, one unit or one block at a time.

    Keeping a share t of every axis leaves about t² of the parameters of a layer. So t² of the blocks of every stage are
    kept with it: width and depth then take equal shares of the parameters, √γ each for a sub-model of γ (NeFL, Kang et
    al. 2023, §4.1). Unit k of an axis of n units has its place at t = k / n, and block j of a run of n blocks at
    t = √(j / n); a step adds the unit or the block with the next place. The smallest plan keeps one unit of every axis
    and no block; heads and other outer factors of products stay whole, as in `nestling.plan`.

    Parameters
    ----------
    axes
        The axes of the whole model.
    width
        Whether axes are cut; if not, the path takes blocks alone.

    Examples
    --------
    >>> import nestling
    >>> from nestling.nets import build, example
    >>> axes = nestling.trace(build("resnet18", widths=(4, 4, 4, 4)), *example("resnet18"))
    >>> path = BalancedPath(axes)
    >>> len(path.plan(0).blocks), path.plan(path.steps)
    (0, Plan(full: whole))
    """

    def __init__(self, axes: AxisMap, width: bool = True) -> None:
        self._all_blocks = tuple(axes.blocks)
        self._sizes = {name: size for name, size in axes.axes.items() if name not in axes.groups} if width else {}
        runs = _runs(self._all_blocks)
        units = [unit for run in runs for unit in run]
        places = [math.sqrt(j / len(run)) for run in runs for j in range(len(run))]
        rungs = [(place, number, -1) for number, place in enumerate(places)]
        rungs += [(k / n, -1, number) for number, n in enumerate(self._sizes.values()) for k in range(1, n)]
        rungs.sort(key=lambda rung: rung[0])  # stable: blocks before units, then in the order of the model
        self._units = units
        self._places = [place for place, _, _ in rungs]
        self._block_at = np.array([block for _, block, _ in rungs], dtype=np.int64)
        self._axis_at = np.array([axis for _, _, axis in rungs], dtype=np.int64)

    @property
    def steps(self) -> int:
        """The number of the last plan."""
        return len(self._places)

    def ratio(self, step: int) -> float:
        """Return t: the share of every axis that is kept, up to one unit."""
        return 1.0 if step == self.steps else self._places[step] or min(filter(None, self._places), default=1.0)

    def plan(self, step: int) -> Plan:
        """Return the plan of a step."""
        if step == self.steps:
            return Plan(key="full")
        blocks, cut = self._block_at[:step], self._axis_at[:step]
        counts = 1 + np.bincount(cut[cut >= 0], minlength=len(self._sizes))
        kept = {
            name: range(int(count))
            for (name, size), count in zip(self._sizes.items(), counts, strict=True)
            if count < size
        }
        names = {name for number in blocks[blocks >= 0] for name in self._units[number]}
        whole = len(names) == len(self._all_blocks)
        return Plan(kept, None if whole else [name for name in self._all_blocks if name in names])


def plan_path(axes: AxisMap, name: PathName | str = "balanced") -> PlanPath:
    """Return a path of a model: ``balanced``, ``width`` (every axis by one ratio, as levels are) or ``depth``.

    >>> import torch, nestling
    >>> axes = nestling.trace(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)), torch.zeros(1, 4))
    >>> plan_path(axes, "depth")
    Traceback (most recent call last):
    nestling.errors.BudgetError: the model has no blocks that can be dropped: cut it by width or balanced
    """
    if name == "width":
        cached = lru_cache(maxsize=64)(lambda ratio: plan(axes, ratio))
        return RatioPath(cached)
    if name == "depth" and not axes.blocks:
        raise BudgetError("the model has no blocks that can be dropped: cut it by width or balanced")
    if name not in ("balanced", "depth"):
        raise BudgetError(f"there is no way {name!r} of cutting a model{nearest(name, ('balanced', 'width', 'depth'))}")
    return BalancedPath(axes, width=name == "balanced")


def _runs(blocks: tuple[str, ...]) -> Runs:
    """Return blocks in runs; blocks inside others are one run, from the outermost on, as they go with those."""
    if nested_pair(blocks) is None:
        return block_runs(blocks)
    return [[(block,) for block in sorted(blocks, key=lambda block: (block.count("."), blocks.index(block)))]]
