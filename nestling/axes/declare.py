"""`AxisMap.declare`: dims declared by hand, in addition to those that `trace` found.

Declared dims are unified with the known ones, so that a split or a new name applies to every tensor that shares the
axis. A frozen axis that is given a name can be cut from then on: the user knows more than the trace, and
`nestling.check` proves it.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping
from dataclasses import replace

from nestling.axes.axismap import Axis, AxisMap
from nestling.axes.dims import NAME, Dim, Dims, Fixed, Leaf, Product, leaves, names_in, parse, resized
from nestling.axes.naming import to_dim, unique
from nestling.axes.unify import Clash, Node, freeze, unify
from nestling.axes.unify import leaves as node_leaves
from nestling.errors import AxisError, nearest


def declare(axes: AxisMap, patterns: Mapping[str, str], sizes: Mapping[str, int]) -> AxisMap:
    """Return `axes` with the dims of some tensors declared; see `AxisMap.declare`."""
    nodes = {name: Node(axis.size, axis.frozen, role=axis.role) for name, axis in axes.table.items()}
    known = {name: [_node(dim, nodes, nodes, "kernel") for dim in dims] for name, dims in axes.dims.items()}
    declared: dict[str, Node] = {}
    for pattern, text in patterns.items():
        matches = [pattern] if pattern in axes.dims else fnmatch.filter(axes.dims, pattern)
        if not matches:
            raise AxisError(f"no tensor matches {pattern!r}{nearest(pattern, axes.dims)}")
        for name in matches:
            written = _filled(text, pattern, name)
            known_sizes = {**_sizes(nodes), **_sizes(declared), **sizes}
            for place, dim in enumerate(_read(written, axes.dims[name], name, known_sizes)):
                try:
                    _thaw_or_freeze(known[name][place], dim)
                    unify(_node(dim, declared, nodes, "declared as a number"), known[name][place])
                except Clash as clash:
                    raise AxisError(f"{written!r} does not fit the tensor {name!r}: {clash}") from None
    return _rebuilt(axes, known, declared, nodes)


def _filled(text: str, pattern: str, name: str) -> str:
    """Replace ``*`` in the dims by what the ``*`` of the tensor pattern matched."""
    if "*" not in text:
        return text
    match = re.match(re.escape(pattern).replace(r"\*", "(.*)", 1).replace(r"\*", ".*") + r"\Z", name)
    if match is None or not match.groups():
        raise AxisError(f"the dims {text!r} use '*', but the tensor pattern {pattern!r} has none")
    return text.replace("*", match.group(1))


def _sizes(declared: Mapping[str, Node]) -> dict[str, int]:
    return {name: node.size for name, node in declared.items()}


def _read(text: str, dims: Dims, name: str, sizes: dict[str, int]) -> Dims:
    """Parse `text` for a tensor of known dims, and compute the sizes of new names."""
    unknown = [axis for axis in names_in(text) if axis not in sizes]
    trial = parse(text, {**sizes, **dict.fromkeys(unknown, 1)})
    if len(trial) != len(dims):
        raise AxisError(f"{text!r} gives {len(trial)} dims to the tensor {name!r}, which has {len(dims)}: {dims.shape}")
    for dim, real in zip(trial, dims, strict=True):
        new = {leaf.name for leaf in leaves(dim) if leaf.name not in sizes}
        if len(new) > 1:
            raise AxisError(f"{text!r} has the new names {sorted(new)} in one dim: give all but one in sizes={{…}}")
        for axis in new:
            sizes[axis] = _solve(dim, axis, real.size, text, name)
    result = parse(text, sizes)
    if result.shape != dims.shape:
        raise AxisError(f"{text!r} has shape {result.shape}, but the tensor {name!r} has {dims.shape}")
    return result


def _solve(dim: Dim, axis: str, size: int, text: str, name: str) -> int:
    """Return the size of `axis` with which `dim` has `size` units."""
    for guess in range(1, size + 1):
        if resized(dim, {axis: guess}).size == size:
            return guess
    raise AxisError(f"no size of {axis!r} makes {text!r} fit the tensor {name!r}")


def _node(dim: Dim, new: dict[str, Node], old: Mapping[str, Node], why: str) -> Node:
    """Return the node of a dim: its axes are taken from `old`, or else are new; its numbers are frozen for `why`."""
    if isinstance(dim, Fixed):
        return Node(dim.size, why)
    if isinstance(dim, Leaf):
        return new.setdefault(dim.name, old.get(dim.name) or Node(dim.size))
    node = Node(dim.size)
    node.kind = "product" if isinstance(dim, Product) else "sum"
    node.parts = [_node(part, new, old, why) for part in dim.parts]
    return node


def _thaw_or_freeze(node: Node, dim: Dim) -> None:
    """Thaw an axis that is given a name; freeze one that is given a number."""
    if any(True for _ in leaves(dim)):
        for leaf in node_leaves(node):
            if leaf.size > 1:
                leaf.frozen, leaf.role = "", "hidden"
    else:
        freeze(node, "declared as a number")


def _rebuilt(
    axes: AxisMap, known: Mapping[str, list[Node]], declared: Mapping[str, Node], nodes: Mapping[str, Node]
) -> AxisMap:
    names: dict[Node, str] = {}
    taken = {*declared, *nodes}
    for source in (declared, nodes):
        for name, node in source.items():
            if not NAME.match(name):
                raise AxisError(f"{name!r} is not a valid axis name")
            parts = list(dict.fromkeys(node_leaves(node)))
            for place, leaf in enumerate(parts):
                if leaf not in names:
                    names[leaf] = name if len(parts) == 1 else unique(f"{name}.{place}", taken)
    table = {name: Axis(name, leaf.size, leaf.frozen, leaf.role) for leaf, name in names.items()}
    dims = {name: Dims(to_dim(node, names) for node in tensor) for name, tensor in known.items()}
    return replace(axes, table=table, dims=dims).pruned()
