"""What some modules demand of their sizes beyond what their operations show.

A recurrent layer has one hidden size for all its layers and directions; torch's attention module needs its inner
width to equal the width of the stream; attention modules at large have one width of a head for queries, keys and
values. Their axes are unified accordingly: coupling more is always safe.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from torch import nn

from nestling.axes.unify import Clash, Node, find, freeze, unify


def couple(model: nn.Module, known: Mapping[str, list[Node]], makers: Sequence[tuple[Node, str]]) -> None:
    """Unify, in every module of `model` that needs it, the dims that its own code takes for one size.

    `makers` are the nodes that parameters give to activations, as the tracer noted them.
    """
    heads: dict[tuple[str, Node, int], list[Node]] = defaultdict(list)
    for node, parameter in makers:
        owner = ".".join(parameter.split(".")[:-2])  # attention.q.weight → attention
        for outer, inner in _heads(node):
            heads[owner, find(outer), inner.size].append(inner)
    for inners in heads.values():
        _same(inners)
    for path, module in model.named_modules():
        at = f"{path}." if path else ""
        if isinstance(module, nn.RNNBase):
            for kind in ("weight_hh", "weight_hr"):  # from hidden units; with projections, to and from them
                _same([known[at + name][1] for name, _ in module.named_parameters() if name.startswith(kind)])
        elif isinstance(module, nn.MultiheadAttention):
            out = known[f"{at}out_proj.weight"]
            entry = known.get(f"{at}in_proj_weight") or known[f"{at}q_proj_weight"]
            _same([out[0], out[1], entry[1]])


def _heads(node: Node) -> Iterator[tuple[Node, Node]]:
    """Yield (heads, width of a head) wherever a view has split `node` into these."""
    node = find(node)
    parts = [find(part) for part in node.parts]
    if node.kind == "product":
        for outer, inner in pairwise(parts):
            if inner.hint == "head_dim":
                yield outer, inner
    for part in parts:
        yield from _heads(part)


def _same(nodes: list[Node]) -> None:
    for node in nodes[1:]:
        try:
            unify(nodes[0], node)
        except Clash as clash:
            for part in nodes:
                freeze(part, str(clash))
