"""`Cut`: how a plan cuts one tensor, as boxes of the big tensor.

The dims of a tensor are split into factors, so that ``(heads dim) embed`` is viewed as a tensor of three dims, and a
cut inside every head is one rectangular box of it. A prefix is a single box, a window that wraps around a few; a set
with many gaps is cut by index instead.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nestling.axes.dims import Dim, Dims, Fixed, Leaf, Product, Sum, factors
from nestling.cut.plan import Runs
from nestling.cut.scatter import scatter

Kept = Callable[[Leaf], Runs]
Box = tuple[tuple[tuple[int, int, int], ...], tuple[tuple[int, int, int], ...]]  # (factor, start, length) big, small
_MAX_BOXES = 4  # up to these, boxes are always copied one by one: two axes whose windows wrap around
_MIN_BOX = 4096  # values in a box from which one operation per box is faster than indexing


@dataclass(frozen=True)
class Cut:
    """A cut of one tensor.

    Attributes
    ----------
    shape
        The shape of the small tensor.
    view
        The shape of the big tensor viewed by its factors.
    runs
        For every factor, the runs of indices kept.
    width
        The number of values in the trailing factors that no plan cuts (nine for a 3×3 kernel): weights per coordinate
        do not vary along these.
    """

    shape: tuple[int, ...]
    view: tuple[int, ...]
    runs: tuple[Runs, ...]
    width: int

    @cached_property
    def kept(self) -> tuple[int, ...]:
        """The shape of the small tensor viewed by its factors."""
        return tuple(sum(stop - start for start, stop in runs) for runs in self.runs)

    @cached_property
    def whole(self) -> bool:
        """Whether the whole tensor is kept."""
        return self.kept == self.view

    @cached_property
    def boxes(self) -> tuple[Box, ...] | None:
        """The boxes of the cut, or None if there would be too many."""
        cut = [k for k, n in enumerate(self.kept) if n != self.view[k]]
        count = math.prod(len(self.runs[k]) for k in cut)
        if count > _MAX_BOXES and math.prod(self.kept) < count * _MIN_BOX:
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

    def take(self, big: Tensor) -> Tensor:
        """Return the small tensor, as a copy."""
        if self.whole:
            return big.clone(memory_format=torch.contiguous_format)
        big = big.reshape(self.view)
        if self.boxes is None:
            for k, size in enumerate(self.view):
                if self.kept[k] != size:
                    big = big.index_select(k, indices(self.runs[k]).to(big.device))
            return big.reshape(self.shape)
        if len(self.boxes) == 1:
            return narrow(big, self.boxes[0][0]).clone(memory_format=torch.contiguous_format).view(self.shape)
        small = big.new_empty(self.kept)
        for source, target in self.boxes:
            narrow(small, target).copy_(narrow(big, source))
        return small.view(self.shape)

    def add_to(self, big: Tensor, small: Tensor, weight: float) -> None:
        """Add `weight` times the small tensor at its places in `big` (float64, contiguous, viewed by its factors)."""
        big, small = big.view(self.view), small.reshape(self.kept)
        if self.boxes is not None:
            for target, source in self.boxes:
                narrow(big, target).add_(narrow(small, source), alpha=weight)
            return
        scatter(big.view(-1, self.width), None, places_of(self), small, weight)

    def inside(self, other: Cut) -> bool:
        """Return whether every place of this cut is in `other`, a cut of the same tensor."""
        return all(
            all(any(a <= start and stop <= b for a, b in theirs) for start, stop in mine)
            for mine, theirs in zip(self.runs, other.runs, strict=True)
            if mine != theirs
        )

    def blend(self, big: Tensor, small: Tensor, share: float) -> None:
        """Move the places of this cut in `big` by `share` of the way to the small tensor (1: copy it)."""
        assert self.boxes is not None
        big, small = big.view(self.view), small.reshape(self.kept)
        for target, source in self.boxes:
            place, value = narrow(big, target), narrow(small, source)
            if share == 1:
                place.copy_(value)
            else:
                place.lerp_(value, share)

    def put(self, big: Tensor, small: Tensor) -> None:
        """Write the small tensor to its places in `big`, which is contiguous: the inverse of `take`."""
        if self.boxes is not None:
            self.blend(big, small, 1)
            return
        rows = torch.from_numpy(np.add.outer(*places_of(self)).ravel()).to(big.device)
        big.view(-1, self.width)[rows] = small.reshape(-1, self.width)

    def zeros(self, like: Tensor) -> Tensor:
        """Allocate memory for sums: the shape of `like` viewed by its factors, in double precision."""
        dtype = torch.complex128 if like.is_complex() else torch.float64
        return torch.zeros(self.view, dtype=dtype, device=like.device)

    @cached_property
    def blank_shape(self) -> tuple[int, ...]:
        """The shape of weights per coordinate: the view of the big tensor with one value per row of `width`."""
        left, shape = self.width, list(self.view)
        for k in reversed(range(len(shape))):
            if left == 1:
                break
            left //= shape[k]
            shape[k] = 1
        return tuple(shape)

    def blank(self, device: torch.device) -> Tensor:
        """Allocate memory for weights per coordinate."""
        return torch.zeros(self.blank_shape, dtype=torch.float64, device=device)

    def count(self, big: Tensor, weight: float) -> None:
        """Add `weight` at the kept places of `big`, which is shaped like `blank()`."""
        if self.boxes is not None:
            for target, _ in self.boxes:
                narrow(big, target).add_(weight)
            return
        rows = torch.from_numpy(np.add.outer(*places_of(self)).ravel()).to(big.device)
        big.view(-1).index_add_(0, rows, big.new_full((1,), weight).expand(len(rows)))


def places_of(cut: Cut) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the indices of the rows of `cut.width` values that a cut keeps, as all sums of two lists.

    >>> dims = Dims([Leaf("out", 2), Leaf("in", 4), Fixed(9)])
    >>> places_of(cut(dims, lambda leaf: {"out": ((0, 2),), "in": ((1, 2),)}[leaf.name]))
    (array([0, 4]), array([1]))
    """
    stride = math.prod(cut.view) // cut.width
    factors = []
    for size, runs in zip(cut.view, cut.runs, strict=True):
        if stride == 1:
            break
        stride //= size
        factors.append(indices(runs).numpy() * stride)
    outer = np.zeros(1, dtype=np.int64)
    for factor in factors[:-1]:
        outer = np.add.outer(outer, factor).ravel()
    return outer, factors[-1] if factors else np.zeros(1, dtype=np.int64)


@lru_cache(maxsize=1024)
def indices(runs: Runs) -> Tensor:
    """Return the indices of `runs`, in increasing order; the tensor is cached and must not be changed.

    >>> indices(((0, 2), (5, 6)))
    tensor([0, 1, 5])
    """
    return torch.tensor([value for start, stop in runs for value in range(start, stop)])


def narrow(tensor: Tensor, box: tuple[tuple[int, int, int], ...]) -> Tensor:
    """Return the view of `tensor` inside a box of (dim, start, length)."""
    for dim, start, length in box:
        tensor = tensor.narrow(dim, start, length)
    return tensor


def cut(dims: Dims, kept: Kept) -> Cut:
    """Return the cut of a tensor of these dims if every leaf keeps the runs ``kept(leaf)``.

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
    width = 1
    for dim in dims:
        size = 1
        for part in factors(dim):
            part_runs = _runs(part, kept)
            size *= sum(stop - start for start, stop in part_runs)
            if isinstance(part, Fixed) and width > 1:  # adjacent numbers are joined into one factor
                view[-1] *= part.size
                runs[-1] = ((0, view[-1]),)
            else:
                view.append(part.size)
                runs.append(part_runs)
            width = width * part.size if isinstance(part, Fixed) else 1
        shape.append(size)
    return Cut(tuple(shape), tuple(view), tuple(runs), width)


def _runs(dim: Dim, kept: Kept) -> Runs:
    """Return the runs of indices kept along `dim`."""
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
