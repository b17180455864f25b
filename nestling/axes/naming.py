"""Turn unified nodes into an `AxisMap` with readable names.

An axis is named after the module whose parameter first produces it: ``layer1.0.conv1``. Parts of a product or sum have
a suffix: ``blocks.0.attention.q.heads``. The rank of an adapter is ``blocks.0.attention.q.lora.rank``. The order is
that of the run, so names are the same every time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from torch import nn

from nestling.axes.adapters import rank_name
from nestling.axes.axismap import Axis, AxisMap
from nestling.axes.dims import Dim, Dims, Fixed, Leaf, Product, Sum
from nestling.axes.skeleton import tensors
from nestling.axes.unify import Node, find, leaves

_NUMBERS = frozenset(["kernel", "one"])  # reasons of frozen sizes that are plain numbers everywhere
_FACTORS = _NUMBERS | {"spatial", "repeated", "stacked", "stacked segments", "units are taken by number"}  # in products


def axis_map(
    model: nn.Module,
    known: Mapping[str, list[Node]],
    producers: Sequence[tuple[Node, str]],
    blocks: Mapping[str, tuple[str, ...]],
) -> AxisMap:
    """Return the map of `model`, given the nodes of its tensors and the (node, parameter) pairs of `producers`."""
    present = {find(leaf) for nodes in known.values() for node in nodes for leaf in leaves(node)}
    names: dict[Node, str] = {}
    taken: set[str] = set()

    def name(node: Node, base: str, free: bool) -> None:
        parts = list(leaves(node))
        for leaf in parts:
            whole = leaf is find(node)
            if leaf not in present or leaf in names or not leaf.size or free == bool(leaf.frozen):
                continue
            if leaf.frozen not in (_NUMBERS if whole else _FACTORS):
                alike = all(part is leaf for part in parts)  # the gates of a recurrent layer are one axis
                names[leaf] = unique(base if alike or not leaf.hint else f"{base}.{leaf.hint}", taken)

    for free in (True, False):  # axes that can be cut get the better names
        for node, parameter in producers:
            name(node, rank_name(_module_of(parameter)), free)
        for parameter, nodes in known.items():
            for place, node in enumerate(nodes):
                name(node, _module_of(parameter) + ("" if len(nodes) == 1 else f".{place}"), free)

    table = {name: Axis(name, leaf.size, leaf.frozen, leaf.role) for leaf, name in names.items()}
    first: dict[int, str] = {}
    tied = {}
    for label, tensor in tensors(model):
        if first.setdefault(id(tensor), label) != label:
            tied[label] = first[id(tensor)]
    dims = {label: Dims(to_dim(node, names) for node in nodes) for label, nodes in known.items()}
    return AxisMap(table, dims, blocks, {label: name for label, name in tied.items() if label in dims})


def to_dim(node: Node, names: Mapping[Node, str]) -> Dim:
    """Return the dim of a node, its leaves named by `names`; a leaf without a name is a number."""
    node = find(node)
    if node.kind is None:
        return Leaf(names[node], node.size) if node in names else Fixed(node.size)
    parts: list[Dim] = []
    for part in (to_dim(part, names) for part in node.parts):
        same = Product if node.kind == "product" else Sum
        for piece in part.parts if isinstance(part, same) else (part,):
            last = parts[-1] if parts else None
            if isinstance(piece, Fixed) and isinstance(last, Fixed):  # numbers side by side are one number
                size = last.size * piece.size if node.kind == "product" else last.size + piece.size
                parts[-1] = Fixed(size)
            elif not (piece == Fixed(1) and node.kind == "product"):
                parts.append(piece)
    if len(parts) == 1:
        return parts[0]
    return Product(tuple(parts)) if node.kind == "product" else Sum(tuple(parts))


def _module_of(parameter: str) -> str:
    """Return the path of the module that owns `parameter`, as a valid axis name."""
    path, _, last = parameter.rpartition(".")
    stem = re.sub(r"_?(weight|bias)(_[ih]h_l\d+(_reverse)?)?$", "", last)
    base = ".".join(part for part in (path, stem) if part) or "model"
    base = re.sub(r"[^A-Za-z0-9_.\-]", "_", base)
    return base if re.match(r"[A-Za-z_]", base) else f"model.{base}"


def unique(name: str, taken: set[str]) -> str:
    """Return `name`, with a number if it is already in `taken`, and add it to `taken`.

    >>> unique("conv", {"conv"})
    'conv.2'
    """
    count, candidate = 2, name
    while candidate in taken:
        candidate, count = f"{name}.{count}", count + 1
    taken.add(candidate)
    return candidate
