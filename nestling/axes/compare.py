"""Compare the axes of a resized model with those of the whole one, to find sizes that are hard-coded."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

from nestling.axes.axismap import AxisMap
from nestling.axes.dims import Dim, Fixed, Leaf, Product, Sum
from nestling.axes.rules_shape import EMPTY

COUNTED = "how many there are is written in the code"  # the reason of frozen heads and groups that do not follow a cut


def difference(axes: AxisMap, sizes: Mapping[str, int], traced: AxisMap, coarse: bool = False) -> str:
    """Describe where `traced`, the axes of a model cut to `sizes`, differ from the expected ones; '' if nowhere.

    Names and couplings may differ (by chance, two parts get the same size, or an axis of one unit no longer couples
    others); the structure may not: the same products and sums, of the sizes kept. If dims were declared by hand, a
    trace may see less structure: then use `coarse`.

    >>> import torch, nestling
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))
    >>> axes = nestling.trace(net, torch.zeros(1, 4))
    >>> difference(axes, {"model.0": 3}, axes)
    "'0.weight' should be [3] [4], but is [8] [4]"
    """
    if EMPTY in traced.frozen.values() and EMPTY not in axes.frozen.values():
        return "a slice that held something is empty"
    for name, dims in axes.dims.items():
        if name not in traced.dims:  # it was dropped with its block
            continue
        wanted = [_plain(dim, axes, sizes) for dim in dims]
        real = [_plain(dim, traced, {}) for dim in traced.dims[name]]
        if not all(_match(a, b, coarse) for a, b in zip(wanted, real, strict=True)):
            return f"{name!r} should be {_shape(wanted)}, but is {_shape(real)}"
    return ""


def prime_sizes(axes: AxisMap, names: Iterable[str]) -> dict[str, int]:
    """Return a different prime for each of `names`, larger than any size in the model.

    A model grown to such sizes and traced again reveals every hard-coded number; small sizes could fit such numbers by
    chance.

    >>> import torch, nestling
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))
    >>> prime_sizes(nestling.trace(net, torch.zeros(1, 4)), ["model.0"])
    {'model.0': 11}
    """
    largest = max((size for dims in axes.dims.values() for size in dims.shape), default=1)
    primes = (n for n in itertools.count(largest + 1) if all(n % k for k in range(2, math.isqrt(n) + 1)))
    return dict(zip(names, primes, strict=False))


def _plain(dim: Dim, axes: AxisMap, sizes: Mapping[str, int]) -> Dim:
    """Return `dim` in the canonical form for comparisons: nothing nested, numbers joined, no factors of one.

    Frozen parts become leaves without a name, which are joined with numbers beside them. (Heads that were frozen only
    because their number is hard-coded are axes in a map for which that was not tried.)
    """
    if isinstance(dim, Fixed):
        return dim
    if isinstance(dim, Leaf):
        size = sizes.get(dim.name, dim.size)
        frozen = axes.frozen.get(dim.name, COUNTED) != COUNTED
        return Fixed(1) if size == 1 else Leaf("" if frozen else dim.name, size)
    kind = type(dim)
    parts: list[Dim] = []
    for part in (_plain(part, axes, sizes) for part in dim.parts):
        for piece in part.parts if isinstance(part, kind) else (part,):
            last = parts[-1] if parts else None
            if last is not None and _number(piece) and _number(last):
                size = last.size * piece.size if kind is Product else last.size + piece.size
                parts[-1] = Fixed(size) if isinstance(piece, Fixed) and isinstance(last, Fixed) else Leaf("", size)
            elif not (kind is Product and piece == Fixed(1)):
                parts.append(piece)
    if not parts:
        return Fixed(1)
    return parts[0] if len(parts) == 1 else kind(tuple(parts))


def _number(dim: Dim) -> bool:
    return isinstance(dim, Fixed) or (isinstance(dim, Leaf) and not dim.name)


def _match(wanted: Dim, real: Dim, coarse: bool) -> bool:
    if _number(wanted):  # nothing was cut here
        return wanted.size == real.size
    if isinstance(real, Leaf) and (coarse or isinstance(wanted, Leaf)):
        return wanted.size == real.size
    if isinstance(wanted, Product | Sum) and isinstance(real, Product | Sum):
        same = type(wanted) is type(real) and len(wanted.parts) == len(real.parts)
        return same and all(_match(x, y, coarse) for x, y in zip(wanted.parts, real.parts, strict=True))
    return wanted == real


def _shape(dims: Sequence[Dim]) -> str:
    """Return dims as text with sizes instead of names, which may differ."""
    return " ".join(_sized(dim) for dim in dims)


def _sized(dim: Dim) -> str:
    if isinstance(dim, Product | Sum):
        return "(" + (" " if isinstance(dim, Product) else " + ").join(map(_sized, dim.parts)) + ")"
    return f"[{dim.size}]" if isinstance(dim, Leaf) else str(dim.size)
