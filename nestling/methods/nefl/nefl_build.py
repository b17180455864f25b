"""Balanced sub-models of any model with residual blocks: the blocks and units that make up a share of its parameters.

Kang et al., NeFL: Nested Federated Learning for Heterogeneous Clients, 2023, section 4.1.

Depth comes first: how many blocks are kept of every *run* of blocks (a stage). The width is then a place on a *ladder*
whose every rung is one more unit of one axis, in the order in which a growing ratio would add them. So at one depth
smaller sub-models lie inside larger ones, and all axes are cut alike up to a unit.

Where one unit is more than 2 % of what was asked for (one number of every word's embedding, in a small transformer),
the ladders of all depths may step over it. Then that axis is held, and the others are cut more or less to make up for
it. What even that does not meet within 1 % (a model whose few units are all that large) gets the nearest found.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nestling.axes import AxisMap
from nestling.axes.block_runs import Runs, block_runs, nested_pair
from nestling.axes.dims import Dim, Dims, Leaf, Product, Sum
from nestling.cut.extract import Same
from nestling.cut.plan import kept_count
from nestling.errors import MethodError

NEAR = 0.01  # of what was asked for: a sub-model this near to it is as good as any
_APART = 0.05  # how far the depth of WD may be from √γ if that keeps the stages in balance
_TRIES = 24  # depths for which WD looks for a width
_MOST = 100_000  # depths that are compared at all
_HELD = 16  # ladders at one depth, on which up to three axes or four are held

Depth = tuple[int, ...]  # how many blocks are kept of every run
Kept = Mapping[str, int]  # how many units are kept of every axis
Whole = NDArray[np.integer[Any]]


class Sizes:
    """How many parameters are left of a model with some units and some blocks.

    Attributes
    ----------
    axes
        The axes that a width cuts: name → size.
    ladder
        Numbers of axes, one for every unit but the first of each, in the order in which units are added.
    runs, full
        The blocks in runs, and how many there are in each.
    whole
        The parameters of the whole model.
    """

    def __init__(self, axes: AxisMap, parameters: frozenset[str]) -> None:
        self.runs = runs_of(axes)
        self.full = tuple(len(run) for run in self.runs)
        self.axes = {name: size for name, size in axes.axes.items() if name not in axes.groups}
        rungs = sorted((unit / size, k) for k, size in enumerate(self.axes.values()) for unit in range(1, size))
        self.ladder = np.array([k for _, k in rungs], dtype=np.int64)
        home = {
            name: (i, j)
            for i, run in enumerate(self.runs)
            for j, unit in enumerate(run)
            for block in unit
            for name in axes.blocks[block]
        }
        self._base: Counter[Dims] = Counter()
        self._units = [[Counter[Dims]() for _ in run] for run in self.runs]
        for name, dims in axes.dims.items():
            if name in parameters and name not in axes.tied:  # a tied tensor goes with the block that has it first
                place = home.get(name)
                where = self._base if place is None else self._units[place[0]][place[1]]
                where[dims] += 1
        self.whole = self.count(self.axes, self.full)

    @property
    def weights(self) -> tuple[int, ...]:
        """The parameters of every run of blocks in tensors of two and more dims, which grow with the width squared."""
        return self._parameters(lambda dims: len(dims) > 1)

    @property
    def vectors(self) -> tuple[int, ...]:
        """The parameters of every run of blocks in norms and biases, which grow with the width; no step sizes."""
        return self._parameters(lambda dims: len(dims) == 1)

    def _parameters(self, counted: Callable[[Dims], bool]) -> tuple[int, ...]:
        return tuple(
            sum(math.prod(dims.shape) * times for unit in run for dims, times in unit.items() if counted(dims))
            for run in self._units
        )

    def at(self, width: float) -> Kept:
        """The units that are left of every axis at a width."""
        return {name: kept_count(width, size) for name, size in self.axes.items()}

    def climbed(self, rungs: Whole) -> Kept:
        """The units that there are after some rungs of a ladder, from one of each axis."""
        counts = 1 + np.bincount(rungs, minlength=len(self.axes))
        return dict(zip(self.axes, map(int, counts), strict=True))

    def parts(self, kept: Kept) -> tuple[int, list[Whole]]:
        """The parameters outside of blocks, and those of the first 0, 1, … blocks of every run."""

        def total(tensors: Counter[Dims]) -> int:
            return sum(math.prod(_size(dim, kept) for dim in dims) * times for dims, times in tensors.items())

        return total(self._base), [np.cumsum([0, *map(total, run)]) for run in self._units]

    def count(self, kept: Kept, depth: Depth) -> int:
        """The parameters that are left."""
        base, blocks = self.parts(kept)
        return base + sum(int(upto[count]) for upto, count in zip(blocks, depth, strict=True))

    def shares(self, kept: Kept, depths: Whole) -> NDArray[np.float64]:
        """The shares of the parameters that are left at many depths, (depths, runs)."""
        base, blocks = self.parts(kept)
        left = base + sum((upto[depths[:, k]] for k, upto in enumerate(blocks)), np.zeros(len(depths)))
        return np.asarray(left / self.whole, dtype=np.float64)


@lru_cache(maxsize=16)
def sizes_of(same: Same, parameters: frozenset[str]) -> Sizes:
    """Return the sizes of a model; remembered from call to call."""
    return Sizes(same.axes, parameters)


def build(sizes: Sizes, gamma: float, variant: str) -> tuple[Kept, Depth]:
    """Return the units and the depth of the sub-model with `gamma` of the parameters, or as near as there is one."""
    if variant != "W" and not sizes.runs:
        raise MethodError(f"nefl's variant {variant!r} leaves blocks out, and this model has none; use variant 'W'")
    least = sizes.axes if variant in ("D", "DO") else sizes.climbed(sizes.ladder[:0])
    smallest = sizes.count(least, sizes.full if variant == "W" else (0,) * len(sizes.runs)) / sizes.whole
    if gamma < smallest:
        raise MethodError(
            f"nefl's variant {variant!r} cannot make this model as small as {gamma:g} of its parameters: "
            f"the smallest sub-model has {smallest:.3g}"
        )
    if variant == "W":
        return sizes.at(math.sqrt(gamma)), sizes.full  # by definition (B.1), however far that is from γ in a narrow net
    depths = _depths(sizes, gamma, least)
    if variant != "WD":
        return sizes.axes, depths[0]
    target = gamma * sizes.whole
    candidates: list[tuple[float, Kept, Depth]] = []
    climbs = {depth: _climb(sizes, depth, target) for depth in depths}
    while climbs:  # all depths climb the plain ladder before an axis is held
        for depth, climb in list(climbs.items()):
            kept = next(climb, None)
            if kept is None:
                del climbs[depth]
                continue
            candidates.append((abs(sizes.count(kept, depth) - target), kept, depth))
            if candidates[-1][0] <= NEAR * target:
                return kept, depth
    return min(candidates, key=lambda one: one[0])[1:]


def _climb(sizes: Sizes, depth: Depth, target: float) -> Iterator[Kept]:
    """Yield the units that come nearest to `target` parameters: all axes alike, then with more and more held.

    Held is the axis that steps over the target, once below it and once above, and the others make up for it.
    """
    ladders = deque([(sizes.ladder, 0)])  # ladders, and how many of their first rungs are held
    for _ in range(_HELD):
        if not ladders:
            return
        ladder, held = ladders.popleft()

        def off(rungs: int, ladder: Whole = ladder) -> float:
            return sizes.count(sizes.climbed(ladder[:rungs]), depth) - target

        above = held + bisect_right(range(held, len(ladder) + 1), 0.0, key=off)
        near = range(max(above - 1, held), min(above, len(ladder)) + 1)
        yield sizes.climbed(ladder[: min(near, key=lambda rungs: abs(off(rungs)))])
        if len(near) == 2:
            over, free = ladder[near[0]], ladder[held:]
            count = int((ladder[held : near[0]] == over).sum())
            for more in (0, 1):
                first = np.concatenate([ladder[:held], np.full(count + more, over)])
                ladders.append((np.concatenate([first, free[free != over]]), len(first)))


def _depths(sizes: Sizes, gamma: float, least: Kept) -> list[Depth]:
    """Depths for which to look for a width, the best first; `least` is the smallest width."""
    depths = _possible(sizes.full)
    smallest, largest = sizes.shares(least, depths), sizes.shares(sizes.axes, depths)
    empty = (depths == 0).sum(1)
    good = empty <= empty[smallest <= gamma].min()  # a whole stage goes only if it must
    if least == sizes.axes:
        target, room = gamma, NEAR * gamma
    else:
        target, room = math.sqrt(gamma), _APART
        reach = good & (smallest <= gamma) & (gamma <= largest * (1 + NEAR))
        good = reach if reach.any() else good
    depths, off = depths[good], np.abs(largest[good] - target)
    kept = depths / np.array(sizes.full)
    balance = np.round(kept.max(1) - kept.min(1), 9)
    order = np.lexsort((off, balance, np.maximum(off - room, 0)))
    return [tuple(map(int, depths[k])) for k in order[:_TRIES]]


def _possible(full: Depth) -> NDArray[np.int64]:
    """All depths, (depths, runs), the deepest first; in a net of many runs, those made by dropping blocks in turn."""
    if math.prod(count + 1 for count in full) <= _MOST:
        return np.stack(np.meshgrid(*(np.arange(n, -1, -1) for n in full), indexing="ij"), -1).reshape(-1, len(full))
    turns = sorted((j / n, i) for i, n in enumerate(full) for j in range(n))
    added = np.zeros((len(turns) + 1, len(full)), dtype=np.int64)
    added[range(1, len(turns) + 1), [i for _, i in turns]] = 1
    return added.cumsum(0)[::-1]


def _size(dim: Dim, kept: Kept) -> int:
    """How many units of a dim are left; an axis that is not in `kept` is whole."""
    if isinstance(dim, Leaf):
        return kept.get(dim.name, dim.size)
    if isinstance(dim, Product):
        return math.prod(_size(part, kept) for part in dim.parts)
    return sum(_size(part, kept) for part in dim.parts) if isinstance(dim, Sum) else dim.size


def runs_of(axes: AxisMap) -> Runs:
    """Return the blocks in runs (`block_runs`); raise if some lie inside others."""
    pair = nested_pair(axes.blocks)
    if pair is not None:
        raise MethodError(
            f"nefl leaves out any block, and in this model the block {pair[1]!r} lies inside {pair[0]!r}; use depthfl"
        )
    return block_runs(axes.blocks)
