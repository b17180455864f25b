"""`Plan`: the units of every axis, and the blocks, that one device gets."""

from __future__ import annotations

import fnmatch
import hashlib
import math
import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from glob import escape
from typing import Annotated, Any

import msgspec
import torch
from torch import Tensor

from nestling.axes import AxisMap
from nestling.cut.pick import Picker, Width, picker
from nestling.errors import PlanError, nearest

Runs = tuple[tuple[int, int], ...]
_KEY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+\-]{0,99}\Z")  # a key is used as a file name, so it must not be a path


class Plan:
    """The units kept of some axes and the blocks kept; every other axis is kept whole.

    A sub-model holds the kept units in increasing order. Two plans with the same content and key are equal; plans with
    the same `key` share private state (such as the norms of one sub-model).

    Parameters
    ----------
    axes
        Axis name → the indices kept (any iterable of integers, or a tensor).
    blocks
        The names of the blocks kept, or None for all.
    key
        A name for this kind of sub-model; by default a digest of the content.

    Examples
    --------
    >>> plan = Plan({"conv1": [0, 1, 2, 5]})
    >>> plan.runs
    {'conv1': ((0, 3), (5, 6))}
    >>> Plan.from_json(plan.to_json()) == plan
    True
    """

    __slots__ = ("__dict__", "blocks", "key", "runs")

    runs: dict[str, Runs]
    blocks: tuple[str, ...] | None
    key: str

    def __init__(
        self,
        axes: Mapping[str, Iterable[int] | Tensor] | None = None,
        blocks: Iterable[str] | None = None,
        key: str = "",
    ) -> None:
        self._fill({name: _runs(name, kept) for name, kept in (axes or {}).items()}, blocks, key)

    def _fill(self, runs: dict[str, Runs], blocks: Iterable[str] | None, key: str) -> None:
        if isinstance(blocks, str):
            raise PlanError(f"blocks must be a list of block names, not the single word {blocks!r}")
        self.runs = dict(sorted(runs.items()))
        self.blocks = None if blocks is None else tuple(sorted(set(blocks)))
        self.key = key or self.digest
        if not _KEY.match(self.key):
            raise PlanError(f"the key {self.key!r} cannot name a file: use letters, digits and . _ + -")

    @cached_property
    def content(self) -> tuple[Any, ...]:
        """The plan's content as a hashable value."""
        return tuple(self.runs.items()), self.blocks

    @cached_property
    def sizes(self) -> dict[str, int]:
        """The number of units kept of every axis that the plan names."""
        return {name: sum(stop - start for start, stop in runs) for name, runs in self.runs.items()}

    @cached_property
    def digest(self) -> str:
        """A digest of the content: twelve hexadecimal digits."""
        return hashlib.sha256(msgspec.json.encode([self.runs, self.blocks])).hexdigest()[:12]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and self.content == other.content and self.key == other.key

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:  # the content of a random plan holds thousands of numbers
        return hash(self.content)

    def __repr__(self) -> str:
        kept = ", ".join(f"{name}: {size}" for name, size in list(self.sizes.items())[:4])
        more = ", …" if len(self.runs) > 4 else ""
        blocks = "" if self.blocks is None else f", {len(self.blocks)} blocks"
        return f"Plan({self.key}: {kept or 'whole'}{more}{blocks})"

    def index(self, axis: str) -> Tensor:
        """Return the kept indices of an axis that the plan names, in increasing order.

        >>> Plan({"conv1": range(2, 5)}).index("conv1")
        tensor([2, 3, 4])
        """
        if axis not in self.runs:
            raise PlanError(f"the plan keeps {axis!r} whole or does not know it{nearest(axis, self.runs)}")
        units = [unit for start, stop in self.runs[axis] for unit in range(start, stop)]
        return torch.tensor(units, device="cpu")

    def fit(self, axes: AxisMap, frozen: bool = False) -> None:
        """Raise `PlanError` unless every axis and block exists and every index is in range.

        Frozen axes may be named only if `frozen` is true: they are never cut, but a client may have trained a part of
        them (the classes it holds).
        """
        axes.known(self.runs, PlanError)
        for name, runs in self.runs.items():
            axis = axes.table[name]
            if axis.frozen and not frozen and runs != ((0, axis.size),):
                raise PlanError(f"the axis {name!r} cannot be cut: {axis.frozen}")
            if runs[-1][1] > axis.size:
                raise PlanError(
                    f"the plan keeps unit {runs[-1][1] - 1} of axis {name!r}, which has units 0 to {axis.size - 1}"
                )
        for block in self.blocks or ():
            if block not in axes.blocks:
                raise PlanError(f"there is no block {block!r}{nearest(block, axes.blocks)}")

    def to_json(self) -> str:
        """Return the plan as JSON text; it is small, because indices are written as runs."""
        return msgspec.json.encode(_PlanJson(self.runs, self.blocks, self.key)).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> Plan:
        """Read a plan from JSON text, which may be untrusted: it is validated, never executed."""
        try:
            data = msgspec.json.decode(text, type=_PlanJson)
        except (msgspec.DecodeError, UnicodeError) as problem:
            raise PlanError(f"this is not the JSON of a plan: {' '.join(str(problem).split())}") from None
        for name, runs in data.axes.items():
            ends = [-1, *(end for run in runs for end in run)]
            rising = all(a < b for a, b in zip(ends[0::2], ends[1::2], strict=False)) and all(a < b for a, b in runs)
            if not runs or not rising:
                raise PlanError(f"the runs of axis {name!r} must be given as [[start, stop], …], rising and apart")
        plan = cls.__new__(cls)
        plan._fill({name: tuple(runs) for name, runs in data.axes.items()}, data.blocks, data.key)
        return plan


class _PlanJson(msgspec.Struct, forbid_unknown_fields=True):
    axes: dict[str, tuple[tuple[Annotated[int, msgspec.Meta(ge=0, le=2**40)], int], ...]]
    blocks: tuple[str, ...] | None = None
    key: str = ""


def _runs(axis: str, kept: Iterable[int] | Tensor) -> Runs:
    """Return the runs of consecutive indices in `kept`; raise `PlanError` if they are not valid indices."""
    if isinstance(kept, range) and kept.step == 1 and len(kept) and kept.start >= 0:
        return ((kept.start, kept.stop),)
    values = kept.tolist() if isinstance(kept, Tensor) else list(kept)
    if not values:
        raise PlanError(f"the plan keeps no unit of axis {axis!r}: at least one must stay")
    for value in values:
        if isinstance(value, bool | Tensor) or not hasattr(value, "__index__"):
            raise PlanError(f"the plan's indices for axis {axis!r} must be whole numbers, not {value!r}")
    values = sorted(int(value) for value in values)
    if values[0] < 0:
        raise PlanError(f"the plan keeps unit {values[0]} of axis {axis!r}: indices start at 0")
    runs: list[tuple[int, int]] = []
    for value in values:
        if runs and value < runs[-1][1]:
            raise PlanError(f"the plan names unit {value} of axis {axis!r} twice")
        if runs and value == runs[-1][1]:
            runs[-1] = (runs[-1][0], value + 1)
        else:
            runs.append((value, value + 1))
    return tuple(runs)


def plan(
    axes: AxisMap,
    width: Width = 1.0,
    pick: str | Picker = "prefix",
    *,
    blocks: Iterable[str] | None = None,
    key: str = "",
    round: int = 0,
    step: int = 1,
    seed: int = 0,
    scores: Mapping[str, Tensor] | None = None,
    mask: Mapping[str, Tensor] | None = None,
) -> Plan:
    """Return a plan that keeps ``ceil(width · size)`` units of every axis.

    Outer factors of a product (the heads in heads · head_dim) are kept whole unless `width` names them, so the cut goes
    inside each head.

    Parameters
    ----------
    axes
        The model's axes, from `nestling.trace`.
    width
        The share of units to keep, in (0, 1]; or a mapping from axis names or shell patterns to shares, where the first
        match counts and axes without a match are kept whole.
    pick
        ``"prefix"`` the first units; ``"rolling"`` a window that starts at ``round · step`` and wraps around;
        ``"random"`` a set drawn from `seed` and the axis's name; ``"importance"`` the units with the highest
        `scores`; ``"mask"`` the units where a boolean `mask` is true (`width` is ignored); or your own function
        ``(name, size, count) → indices``.
    blocks
        The blocks to keep, as names or shell patterns; all by default.
    key
        The plan's key; by default its width, or a digest of its content.

    Examples
    --------
    >>> import torch, nestling
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> axes = nestling.trace(net, torch.zeros(1, 4))
    >>> nestling.plan(axes, width=0.5).runs
    {'model.0': ((0, 4),)}
    >>> nestling.plan(axes, width=0.5, pick="rolling", round=6).runs
    {'model.0': ((0, 2), (6, 8))}
    """
    for pattern in width if isinstance(width, Mapping) else ():
        _check_pattern(axes, pattern, "width")
    for name in mask or ():
        _check_pattern(axes, escape(name), "mask")
    choose = picker(pick, round=round, step=step, seed=seed, scores=scores, mask=mask)
    kept = {}
    for name, size in axes.axes.items():
        share = _share(name, width, name in axes.groups)
        count = kept_count(share, size)
        if count < size or pick == "mask":
            runs = _runs(name, choose(name, size, count))
            if runs != ((0, size),):
                kept[name] = [value for start, stop in runs for value in range(start, stop)]
    keep = None if blocks is None else _blocks(axes, blocks)
    if not key and keep is None and not kept:
        key = "full"
    elif not key and keep is None and pick in ("prefix", "rolling", "random") and isinstance(width, float | int):
        key = f"w{float(width)!r}"
    result = Plan(kept, keep, key)
    result.fit(axes)
    return result


def kept_count(share: float, size: int) -> int:
    """Return how many of `size` units a share keeps: rounded up, and at least one."""
    # the rounding keeps 0.07 · 100 = 7.000000000000001 from becoming 8
    return max(1, math.ceil(round(share * size, 9)))


def _check_pattern(axes: AxisMap, pattern: str, what: str) -> None:
    """Raise `PlanError` unless a shell pattern matches an axis that can be cut."""
    if not fnmatch.filter(axes.axes, pattern):
        frozen = fnmatch.filter(axes.frozen, pattern)
        if frozen:
            raise PlanError(
                f"the {what} of axis {frozen[0]!r} cannot be set, as it cannot be cut: {axes.frozen[frozen[0]]}"
            )
        raise PlanError(f"the {what} is given for {pattern!r}, which no axis matches{nearest(pattern, axes.axes)}")


def _share(name: str, width: Width, group: bool) -> float:
    share = 1.0
    if isinstance(width, Mapping):
        for pattern, value in width.items():
            if fnmatch.fnmatchcase(name, pattern) and not (group and pattern == "*"):
                share = value
                break
    elif not group:
        share = width
    if not (isinstance(share, float | int) and 0 < share <= 1):
        raise PlanError(f"the width of axis {name!r} must be a number above 0 and at most 1, not {share!r}")
    return share


def _blocks(axes: AxisMap, patterns: Iterable[str]) -> list[str] | None:
    if isinstance(patterns, str):
        patterns = [patterns]
    kept: set[str] = set()
    for pattern in patterns:
        matches = fnmatch.filter(axes.blocks, pattern)
        if not matches:
            raise PlanError(f"no block matches {pattern!r}{nearest(pattern, axes.blocks)}")
        kept.update(matches)
    return None if len(kept) == len(axes.blocks) else [name for name in axes.blocks if name in kept]
