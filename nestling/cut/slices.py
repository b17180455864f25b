"""How a plan cuts one tensor: which boxes of the big tensor make up the small one.

The dims of a tensor are taken apart into factors, so that ``(heads dim) embed`` is seen as a tensor of three
dims, and a cut inside every head is one rectangular box of it. Prefixes are a single box, a window that wraps
around a few; a set with many gaps goes by index instead.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from nestling.axes.dims import Dim, Dims, Fixed, Leaf, Product, Sum, factors
from nestling.cut.plan import Runs

Kept = Callable[[Leaf], Runs]
Box = tuple[tuple[tuple[int, int, int], ...], tuple[tuple[int, int, int], ...]]  # (factor, start, length) big, small
_MANY = 64  # boxes; beyond that, indexing is quicker than one operation per box


@dataclass(frozen=True)
class Cut:
    """A cut of one tensor.

    Attributes
    ----------
    shape
        The shape of the small tensor.
    view
        The shape of the big tensor seen by its factors.
    runs
        For every factor, the runs of indices kept.
    fixed
        For every factor, whether it is a plain number: per-coordinate weights do not vary along these.
    """

    shape: tuple[int, ...]
    view: tuple[int, ...]
    runs: tuple[Runs, ...]
    fixed: tuple[bool, ...]

    @cached_property
    def kept(self) -> tuple[int, ...]:
        """The shape of the small tensor seen by its factors."""
        return tuple(sum(stop - start for start, stop in runs) for runs in self.runs)

    @cached_property
    def whole(self) -> bool:
        """Whether nothing is cut away."""
        return self.kept == self.view

    @cached_property
    def boxes(self) -> tuple[Box, ...] | None:
        """The boxes of the cut, or None where there would be too many."""
        cut = [k for k, n in enumerate(self.kept) if n != self.view[k]]
        if math.prod(len(self.runs[k]) for k in cut) > _MANY:
            return None
        sides = []
        for k in cut:
            starts = itertools.accumulate((stop - start for start, stop in self.runs[k]), initial=0)
            sides.append(
                [
                    ((k, start, stop - start), (k, at, stop - start))
                    for (start, stop), at in zip(self.runs[k], starts, strict=False)
                ]
            )
        return tuple(
            (tuple(side[0] for side in choice), tuple(side[1] for side in choice))
            for choice in itertools.product(*sides)
        )

    def index(self, factor: int) -> Tensor:
        """Return the kept indices along one factor."""
        return torch.cat([torch.arange(start, stop) for start, stop in self.runs[factor]])

    def take(self, big: Tensor) -> Tensor:
        """Return the small tensor, a copy in which each kept value was copied once where runs are few."""
        if self.whole:
            return big.clone(memory_format=torch.contiguous_format)
        big = big.reshape(self.view)
        if self.boxes is None:
            for k, size in enumerate(self.view):
                if self.kept[k] != size:
                    big = big.index_select(k, self.index(k).to(big.device))
            return big.reshape(self.shape)
        if len(self.boxes) == 1:
            return narrow(big, self.boxes[0][0]).clone(memory_format=torch.contiguous_format).view(self.shape)
        small = big.new_empty(self.kept)
        for source, target in self.boxes:
            narrow(small, target).copy_(narrow(big, source))
        return small.view(self.shape)

    def add_to(self, big: Tensor, small: Tensor) -> None:
        """Add the small tensor onto its places in `big` (seen by its factors, contiguous)."""
        big, small = big.view(self.view), small.reshape(self.kept)
        if self.boxes is not None:
            for target, source in self.boxes:
                narrow(big, target).add_(narrow(small, source))
            return
        # rows of uncut trailing values, each at its own offset
        inner = len(self.view)
        while inner and self.kept[inner - 1] == self.view[inner - 1]:
            inner -= 1
        rows = self._offsets(self.view, inner)
        width = math.prod(self.view[inner:])
        big.view(-1, width).index_add_(0, rows, small.reshape(-1, width).to(big.dtype))

    def count(self, big: Tensor, weight: float) -> None:
        """Add `weight` at the kept places of `big`, whose fixed factors have size one."""
        view = tuple(1 if fixed else n for n, fixed in zip(self.view, self.fixed, strict=True))
        big = big.view(view)
        if self.boxes is not None:
            for target, _ in self.boxes:
                narrow(big, target).add_(weight)
            return
        rows = self._offsets(view, len(view))
        big.view(-1).index_add_(0, rows, torch.full((len(rows),), weight, dtype=big.dtype))

    def _offsets(self, view: tuple[int, ...], inner: int) -> Tensor:
        """Flat offsets of every kept combination of the first `inner` factors of `view`."""
        offsets = torch.zeros(1, dtype=torch.long)
        for k in range(inner):
            kept = self.index(k) if view[k] != 1 else torch.zeros(1, dtype=torch.long)
            offsets = (offsets[:, None] * view[k] + kept).flatten()
        return offsets


def narrow(tensor: Tensor, box: tuple[tuple[int, int, int], ...]) -> Tensor:
    """Return the view of `tensor` inside a box of (dim, start, length)."""
    for dim, start, length in box:
        tensor = tensor.narrow(dim, start, length)
    return tensor


def cut(dims: Dims, kept: Kept) -> Cut:
    """Return how a tensor of these dims is cut when every leaf keeps the runs ``kept(leaf)``.

    >>> dims = Dims([Product((Leaf("heads", 2), Leaf("dim", 4))), Fixed(3)])
    >>> c = cut(dims, lambda leaf: ((0, 2),))
    >>> c.shape, c.view
    ((4, 3), (2, 4, 3))
    >>> c.take(torch.arange(24).view(8, 3))[:, 0]
    tensor([ 0,  3, 12, 15])
    """
    shape: list[int] = []
    view: list[int] = []
    runs: list[Runs] = []
    fixed: list[bool] = []
    for dim in dims:
        size = 1
        for part in factors(dim):
            part_runs = _runs(part, kept)
            size *= sum(stop - start for start, stop in part_runs)
            if fixed and fixed[-1] and isinstance(part, Fixed):  # plain numbers side by side are one factor
                view[-1] *= part.size
                runs[-1] = ((0, view[-1]),)
            else:
                view.append(part.size)
                runs.append(part_runs)
                fixed.append(isinstance(part, Fixed))
        shape.append(size)
    return Cut(tuple(shape), tuple(view), tuple(runs), tuple(fixed))


def _runs(dim: Dim, kept: Kept) -> Runs:
    """The runs of indices kept along `dim`."""
    if isinstance(dim, Fixed):
        return ((0, dim.size),)
    if isinstance(dim, Leaf):
        return kept(dim)
    if isinstance(dim, Sum):
        starts = itertools.accumulate((part.size for part in dim.parts), initial=0)
        return _joined(
            (start + at, stop + at)
            for part, at in zip(dim.parts, starts, strict=False)
            for start, stop in _runs(part, kept)
        )
    first, rest = dim.parts[0], dim.parts[1:]
    inner = Product(rest) if len(rest) > 1 else rest[0]
    inside = _runs(inner, kept)
    if inside == ((0, inner.size),):
        return tuple((start * inner.size, stop * inner.size) for start, stop in _runs(first, kept))
    return _joined(
        (unit * inner.size + start, unit * inner.size + stop)
        for run in _runs(first, kept)
        for unit in range(*run)
        for start, stop in inside
    )


def _joined(runs: Iterator[tuple[int, int]]) -> Runs:
    joined: list[tuple[int, int]] = []
    for start, stop in runs:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((start, stop))
    return tuple(joined)
