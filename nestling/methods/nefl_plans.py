"""The sub-models of NeFL: the paper's own for its models, and balanced ones for any other model with residual blocks.

Kang et al., NeFL: Nested Federated Learning for Heterogeneous Clients, 2023, section 4.1 and B.1.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from glob import escape
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from nestling.axes import AxisMap
from nestling.axes.dims import Dim, Dims, Fixed, Leaf, Product, Sum, leaves, replace
from nestling.cut import Plan, plan
from nestling.cut.extract import Same
from nestling.cut.plan import kept_count
from nestling.errors import MethodError, nearest
from nestling.methods.nefl_tables import TABLES, Row

VARIANTS = ("W", "D", "DO", "WD")
NEAR = 0.01  # of all parameters: a sub-model this near to what was asked for is as good as any
_APART = 0.05  # how far the depth of WD may be from √γ if that keeps the stages in balance
_TRIES = 24  # depths for which WD looks for a width
_MOST = 100_000  # depths that are compared at all

Depth = tuple[int, ...]  # how many blocks are kept of every run
Runs = list[list[tuple[str, ...]]]  # runs of units, which are the names of the blocks that go together


def nefl_plan(
    axes: AxisMap, parameters: frozenset[str], gamma: float, variant: str = "WD", table: str = "auto"
) -> Plan:
    """Return the sub-model with about `gamma` of the parameters; remembered from call to call.

    W keeps √γ of every axis, by definition. Without a table, D is as near to `gamma` as whole blocks allow: the last
    blocks of each stage go, no stage as a whole unless the rest is still too large, and of the depths within 1 % of
    `gamma` the one whose stages are shortened most alike. DO keeps the blocks of D, as in the paper's Table 12. WD
    first takes a balanced depth near √γ, then the width that comes nearest to `gamma`.

    Parameters
    ----------
    axes
        The axes of the whole model.
    parameters
        The names in `axes.dims` that are trained; the others are buffers and not counted.
    gamma
        The share of the parameters, in (0, 1].
    variant
        What is scaled: ``"W"`` width, ``"D"`` or ``"DO"`` depth, ``"WD"`` both.
    table
        The name of a model in `nefl_tables`, to use the paper's rows; ``"auto"`` for those of the model itself, where
        it is one of the paper's in full size and has a row for `gamma`; ``"none"`` for no table.

    Examples
    --------
    >>> import nestling
    >>> from nestling.nets import build, example
    >>> net = build("resnet18", widths=(16, 32, 64, 128))
    >>> axes = nestling.trace(net, *example("resnet18"))
    >>> small = nefl_plan(axes, frozenset(dict(net.named_parameters())), 0.6, "D")
    >>> small.key, sorted(set(axes.blocks) - set(small.blocks))
    ('g0.6', ['stages.3.1'])
    """
    if variant not in VARIANTS:
        raise MethodError(f"nefl has no variant {variant!r}{nearest(str(variant), VARIANTS)}")
    if table not in ("auto", "none", *TABLES):
        raise MethodError(f"nefl has no table {table!r}{nearest(str(table), ('auto', 'none', *TABLES))}")
    if isinstance(gamma, bool) or not (isinstance(gamma, float | int) and 0 < gamma <= 1):
        raise MethodError(f"nefl's share of the parameters must be a number above 0 and at most 1, not {gamma!r}")
    if gamma == 1:
        return Plan(key="full")
    return _plan(Same(axes), parameters, float(gamma), variant, table)


def initial_steps(axes: AxisMap, plan: Plan, variant: str) -> dict[str, float]:
    """Return the value at which every step size that `plan` keeps begins, by its state name.

    It is 1; in variant DO the last kept block before a gap makes up for those skipped after it (A.3).

    Examples
    --------
    >>> import nestling
    >>> from nestling.nets import build, example
    >>> net = build("resnet18", depths=(3, 1), widths=(4, 8))
    >>> axes = nestling.trace(net, *example("resnet18"))
    >>> initial_steps(axes, nestling.plan(axes, blocks=["stages.0.0", "stages.1.0"]), "DO")
    {'stages.0.0.step': 3.0, 'stages.1.0.step': 1.0}
    """
    if variant not in VARIANTS:
        raise MethodError(f"nefl has no variant {variant!r}{nearest(str(variant), VARIANTS)}")
    kept = set(axes.blocks if plan.blocks is None else plan.blocks)
    steps: dict[str, float] = {}
    for run in _runs(axes):
        stays = [k for k, unit in enumerate(run) if kept.intersection(unit)]
        for k, following in pairwise([*stays, len(run)]):
            value = float(following - k) if variant == "DO" else 1.0
            for block in kept.intersection(run[k]):
                steps |= {name: value for name in axes.blocks[block] if name.endswith(".step")}
    return {name: steps[name] for name in axes.dims if name in steps}


@lru_cache(maxsize=256)
def _plan(same: Same, parameters: frozenset[str], gamma: float, variant: str, table: str) -> Plan:
    axes, sizes = same.axes, _sizes(same, parameters)
    row = _row(sizes, gamma, variant, table)
    if row is None:
        width, depth = _build(sizes, gamma, variant)
        kept = [unit for run, count in zip(sizes.runs, depth, strict=True) for unit in run[:count]]
    else:
        width = math.sqrt(row.width)
        ones = row.blocks.replace(" ", "") or "1" * sum(map(len, sizes.runs))
        units = [unit for run in sizes.runs for unit in run]
        kept = [unit for unit, one in zip(units, ones, strict=True) if one == "1"]
    blocks = [escape(block) for unit in kept for block in unit]
    return plan(axes, width, blocks=blocks, key=f"g{gamma:g}")


# ---- the paper's


def _row(sizes: _Sizes, gamma: float, variant: str, table: str) -> Row | None:
    """The paper's row, or None where a sub-model is to be built."""
    stages = tuple(len(run) for run in sizes.runs)
    kind, gamma = variant.removesuffix("O"), round(gamma, 9)
    if table in ("auto", "none"):
        mine = [t for t in TABLES.values() if (t.stages, t.parameters) == (stages, sizes.whole) and table == "auto"]
        return mine[0].rows.get(kind, {}).get(gamma) if mine else None
    chosen = TABLES[table]
    if chosen.stages != stages:
        raise MethodError(
            f"nefl's table {table!r} is for stages of {chosen.stages} blocks, and this model has {stages}; use 'none'"
        )
    rows = chosen.rows.get(kind, {})
    if gamma not in rows:
        known = ", ".join(f"{value:g}" for value in sorted(rows)) or "none"
        raise MethodError(
            f"nefl's table {table!r} has no row for {gamma:g} in variant {variant!r} (it has {known}); use 'auto'"
        )
    return rows[gamma]


# ---- any other


class _Sizes:
    """How many parameters are left of a model at a width and a depth."""

    def __init__(self, axes: AxisMap, parameters: frozenset[str]) -> None:
        self.runs = _runs(axes)
        home = {
            name: (i, j)
            for i, run in enumerate(self.runs)
            for j, unit in enumerate(run)
            for block in unit
            for name in axes.blocks[block]
        }
        cut = set(axes.axes) - axes.groups
        # One ratio cuts all axes, so tensors differ by the sizes of their dims alone: a deep net has a dozen kinds.
        alike: dict[Dims, Dims] = {}
        self._base: Counter[Dims] = Counter()
        self._units = [[Counter[Dims]() for _ in run] for run in self.runs]
        for name, dims in axes.dims.items():
            if name in parameters and name not in axes.tied:  # a tied tensor goes with the block that has it first
                if dims not in alike:
                    alike[dims] = Dims(replace(dim, lambda leaf: _nameless(leaf, cut)) for dim in dims)
                place = home.get(name)
                where = self._base if place is None else self._units[place[0]][place[1]]
                where[alike[dims]] += 1
        units = {leaf.size for dims in alike.values() for dim in dims for leaf in leaves(dim)}
        self.widths = sorted({count / size for size in units for count in range(1, size + 1)} | {1.0})
        self._at: dict[float, tuple[int, list[NDArray[np.int64]]]] = {}
        self.full = tuple(len(run) for run in self.runs)
        self.whole = 1
        self.whole = round(self.share(1.0, self.full))

    def parts(self, width: float) -> tuple[int, list[NDArray[np.int64]]]:
        """The parameters outside of blocks, and those of the first 0, 1, … blocks of every run."""
        if width not in self._at:
            kinds = set(self._base).union(*(unit for run in self._units for unit in run))
            size = {dims: math.prod(_size(dim, width) for dim in dims) for dims in kinds}

            def total(tensors: Counter[Dims]) -> int:
                return sum(size[dims] * count for dims, count in tensors.items())

            blocks = [np.cumsum([0, *map(total, run)], dtype=np.int64) for run in self._units]
            self._at[width] = total(self._base), blocks
        return self._at[width]

    def share(self, width: float, depth: Depth) -> float:
        """The share of the parameters that are left."""
        base, blocks = self.parts(width)
        return (base + sum(int(upto[count]) for upto, count in zip(blocks, depth, strict=True))) / self.whole

    def shares(self, width: float, depths: NDArray[np.int64]) -> NDArray[np.float64]:
        """The same for many depths, (depths, runs)."""
        base, blocks = self.parts(width)
        left = base + sum((upto[depths[:, k]] for k, upto in enumerate(blocks)), np.zeros(len(depths)))
        return np.asarray(left / self.whole, dtype=np.float64)


@lru_cache(maxsize=16)
def _sizes(same: Same, parameters: frozenset[str]) -> _Sizes:
    return _Sizes(same.axes, parameters)


def _nameless(leaf: Leaf, cut: set[str]) -> Dim:
    return Leaf("", leaf.size) if leaf.name in cut else Fixed(leaf.size)


def _size(dim: Dim, width: float) -> int:
    """How many units of a nameless dim are left at a width."""
    if isinstance(dim, Leaf):
        return kept_count(width, dim.size)
    if isinstance(dim, Product):
        return math.prod(_size(part, width) for part in dim.parts)
    return sum(_size(part, width) for part in dim.parts) if isinstance(dim, Sum) else dim.size


def _build(sizes: _Sizes, gamma: float, variant: str) -> tuple[float, Depth]:
    """The width and depth of a sub-model that no table gives."""
    if variant != "W" and not sizes.runs:
        raise MethodError(f"nefl's variant {variant!r} leaves blocks out, and this model has none; use variant 'W'")
    widths = [1.0] if variant in ("D", "DO") else sizes.widths
    smallest = sizes.share(widths[0], sizes.full if variant == "W" else (0,) * len(sizes.runs))
    if gamma < smallest:
        raise MethodError(
            f"nefl's variant {variant!r} cannot make this model as small as {gamma:g} of its parameters: "
            f"the smallest sub-model has {smallest:.3g}"
        )
    if variant == "W":
        return math.sqrt(gamma), sizes.full  # by definition (B.1), however far that is from γ in a narrow net
    tried = []
    for depth in _depths(sizes, gamma, widths):
        above = bisect_right(widths, gamma, key=lambda width, depth=depth: sizes.share(width, depth))  # type: ignore[misc]
        found = [
            (abs(sizes.share(width, depth) - gamma), width, depth) for width in widths[max(above - 1, 0) : above + 1]
        ]
        tried.append(min(found))
        if tried[-1][0] <= NEAR:
            return tried[-1][1:]
    return min(tried, key=lambda one: one[0])[1:]


def _depths(sizes: _Sizes, gamma: float, widths: Sequence[float]) -> list[Depth]:
    """Depths for which to look for a width, the best first."""
    depths = _possible(sizes.full)
    least, most = sizes.shares(widths[0], depths), sizes.shares(1.0, depths)
    empty = (depths == 0).sum(1)
    good = empty <= empty[least <= gamma].min()  # a whole stage goes only if it must
    if len(widths) == 1:
        target, room = gamma, NEAR
    else:
        target, room = math.sqrt(gamma), _APART
        reach = good & (least <= gamma) & (gamma <= most + NEAR)
        good = reach if reach.any() else good
    depths, off = depths[good], np.abs(most[good] - target)
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


def _runs(axes: AxisMap) -> Runs:
    """The blocks in runs of consecutive numbers under one name; blocks with the same number go together.

    A vision transformer's block is ``blocks.3.attention`` and ``blocks.3.mlp``; a gap in the numbers ends a stage.
    """
    units: dict[tuple[str, int], list[str]] = {}
    for block in axes.blocks:
        words = block.split(".")
        numbers = [k for k, word in enumerate(words) if word.isdecimal()]
        place = (".".join(words[: numbers[-1]]), int(words[numbers[-1]])) if numbers else (f"{block}.", 0)
        units.setdefault(place, []).append(block)
    runs: Runs = []
    before = ("", -1)
    for place, blocks in units.items():
        if not runs or place != (before[0], before[1] + 1):
            runs.append([])
        runs[-1].append(tuple(blocks))
        before = place
    return runs
