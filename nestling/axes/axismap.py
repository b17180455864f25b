"""`AxisMap`: which dims of which tensors belong to one axis, which axes can be cut, and why the others cannot."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated

import msgspec

from nestling.axes.dims import NAME, Dims, factors, leaves, parse
from nestling.axes.unify import Role
from nestling.errors import AxisError, nearest

# the reasons from which the roles of axes follow in files that were written without roles
_ROLES: dict[str, Role] = {"input of the model": "input", "output of the model": "output"}


@dataclass(frozen=True, slots=True)
class Axis:
    """A named axis of `size` units.

    `frozen` is the reason why it cannot be cut, or "" if it can. `role` is "input" or "output" if that reason is that
    the model's inputs or outputs have this axis, and else "hidden".
    """

    name: str
    size: int
    frozen: str = ""
    role: Role = "hidden"


@dataclass(frozen=True)
class AxisMap:
    """The axes of one model, as `trace` finds them.

    Attributes
    ----------
    table
        Every named axis, free or frozen, in the order in which the model uses them.
    dims
        The dims of every tensor of the model's state over those axes; tied tensors under each of their names.
    blocks
        For every block that can be dropped, the state names that are dropped with it.
    tied
        For every further name of a tied tensor, its first name.
    """

    table: Mapping[str, Axis]
    dims: Mapping[str, Dims]
    blocks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    tied: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def axes(self) -> dict[str, int]:
        """The axes that can be cut: name → size."""
        return {axis.name: axis.size for axis in self.table.values() if not axis.frozen}

    @cached_property
    def frozen(self) -> dict[str, str]:
        """The named axes that cannot be cut: name → reason."""
        return {axis.name: axis.frozen for axis in self.table.values() if axis.frozen}

    @cached_property
    def groups(self) -> frozenset[str]:
        """Free axes that are outer factors of another free axis in a product, such as heads in (heads dim).

        A width cut goes inside each of them, so that a smaller model keeps every head and makes all of them narrower.
        """
        groups: set[str] = set()
        for dims in self.dims.values():
            for dim in dims:
                outer: list[str] = []
                for part in factors(dim):
                    names = [leaf.name for leaf in leaves(part) if leaf.name in self.axes]
                    if names:
                        groups.update(name for name in outer if name not in names)
                        outer += names
        return frozenset(groups)

    def uses(self, axis: str) -> list[str]:
        """Return the tensors in which `axis` appears.

        >>> import torch, nestling
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> nestling.trace(net, torch.zeros(1, 4)).uses("model.0")
        ['0.weight', '0.bias', '2.weight']
        """
        self.known([axis])
        return [name for name, dims in self.dims.items() if any(leaf.name == axis for d in dims for leaf in leaves(d))]

    def known(self, names: Iterable[str], error: type[Exception] = AxisError) -> None:
        """Raise `error` if any of `names` is not an axis of this map."""
        for name in names:
            if name not in self.table:
                raise error(f"there is no axis {name!r}{nearest(name, self.table)}")

    def freeze(self, *patterns: str, why: str = "frozen by hand") -> AxisMap:
        """Return this map with every axis frozen whose name matches one of `patterns` (as in the shell).

        >>> import torch, nestling
        >>> axes = nestling.trace(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)), torch.zeros(1, 4))
        >>> axes.freeze("model.0", why="the sensor reads it").frozen["model.0"]
        'the sensor reads it'
        """
        table = dict(self.table)
        for pattern in patterns:
            matches = fnmatch.filter(table, pattern)
            if not matches:
                raise AxisError(f"no axis matches {pattern!r}{nearest(pattern, table)}")
            for name in matches:
                if not table[name].frozen:
                    table[name] = replace(table[name], frozen=why or "frozen by hand")
        return replace(self, table=table)

    def declare(self, patterns: Mapping[str, str], sizes: Mapping[str, int] | None = None) -> AxisMap:
        """Return this map with the dims of some tensors declared by hand.

        `patterns` maps a tensor name, or a shell pattern of names, to its dims, in the grammar of
        `nestling.axes.dims`. An unknown name becomes a new axis; one such name per dim gets its size from the
        tensor, further ones from `sizes`. A name is the same axis wherever it is used in one call, unless it
        contains ``*``, which is replaced by what the ``*`` of the tensor pattern matched. Prove the result with
        `nestling.check`.

        >>> import torch, nestling
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Linear(6, 2))
        >>> axes = nestling.trace(net, torch.zeros(1, 4))
        >>> pairs = {"0.weight": "(2 half) 4", "0.bias": "(2 half)", "1.weight": "2 (2 half)"}
        >>> axes.declare(pairs).axes
        {'half': 3}
        """
        from nestling.axes.declare import declare  # noqa: PLC0415 - declare builds on this class

        return declare(self, patterns, sizes or {})

    def pruned(self) -> AxisMap:
        """Return this map without the named axes that no tensor uses any more."""
        used = {leaf.name for dims in self.dims.values() for dim in dims for leaf in leaves(dim)}
        return replace(self, table={name: axis for name, axis in self.table.items() if name in used})

    def to_json(self) -> str:
        """Return this map as JSON text.

        >>> import torch, nestling
        >>> axes = nestling.trace(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)), torch.zeros(1, 4))
        >>> nestling.AxisMap.from_json(axes.to_json()) == axes
        True
        """
        return msgspec.json.encode(
            _AxisMapJson(
                axes=[_AxisJson(axis.name, axis.size, axis.frozen, axis.role) for axis in self.table.values()],
                dims={name: str(dims) for name, dims in self.dims.items()},
                blocks={name: list(names) for name, names in self.blocks.items()},
                tied=dict(self.tied),
            )
        ).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> AxisMap:
        """Read a map from JSON text, which may be untrusted: it is validated, never executed."""
        try:
            data = msgspec.json.decode(text, type=_AxisMapJson)
        except (msgspec.DecodeError, UnicodeError) as problem:
            raise AxisError(f"this is not the JSON of an axis map: {' '.join(str(problem).split())}") from None
        table = {a.name: Axis(a.name, a.size, a.frozen, a.role or _ROLES.get(a.frozen, "hidden")) for a in data.axes}
        if len(table) != len(data.axes):
            raise AxisError("the axis map names an axis twice")
        for name in table:
            if not NAME.match(name):
                raise AxisError(f"the axis map holds the name {name!r}, which is not a valid axis name")
        sizes = {axis.name: axis.size for axis in table.values()}
        dims = {name: parse(written, sizes) for name, written in data.dims.items()}
        known = set(dims)
        for names in [*data.blocks.values(), list(data.tied), list(data.tied.values())]:
            for name in names:
                if name not in known:
                    raise AxisError(f"the axis map refers to the tensor {name!r}, whose dims it does not give")
        for name, first in data.tied.items():
            if first in data.tied or dims[name] != dims[first]:
                raise AxisError(f"the axis map ties {name!r} to {first!r}, which is tied itself or has other dims")
        blocks = {name: tuple(names) for name, names in data.blocks.items()}
        return cls(table, dims, blocks, data.tied)

    def __str__(self) -> str:
        free, frozen = len(self.axes), len(self.frozen)
        return f"{free} axes to cut, {frozen} frozen, {len(self.blocks)} blocks, {len(self.dims)} tensors"


class _AxisJson(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    name: str
    size: Annotated[int, msgspec.Meta(ge=1)]
    frozen: str = ""
    role: Role | None = None


class _AxisMapJson(msgspec.Struct, forbid_unknown_fields=True):
    axes: list[_AxisJson]
    dims: dict[str, str]
    blocks: dict[str, list[str]]
    tied: dict[str, str]
