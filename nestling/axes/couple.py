"""Constraints between the sizes of some modules that their operations do not show.

A recurrent layer has one hidden size for all its layers and directions; in torch's attention module the inner width
equals the width of the stream; in attention modules in general, queries, keys and values have one head width. Their
axes are unified accordingly: coupling more than necessary is always safe.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from torch import nn

from nestling.axes.layers import WIDTHS
from nestling.axes.unify import Clash, Node, find, freeze, unify


def couple(model: nn.Module, known: Mapping[str, list[Node]], producers: Sequence[tuple[Node, str]]) -> None:
    """Unify, in every module of `model` that needs it, the dims that its code assumes to be equal.

    `producers` are the nodes of activations with the parameters that produce them, as recorded by the tracer.
    """
    heads: dict[tuple[str, Node, int], list[Node]] = defaultdict(list)
    for node, parameter in producers:
        owner = ".".join(parameter.split(".")[:-2])  # attention.q.weight → attention
        for outer, inner in _heads(node):
            heads[owner, find(outer), inner.size].append(inner)
    for inners in heads.values():
        _same(inners)
    for path, module in model.named_modules():
        at = f"{path}." if path else ""
        if isinstance(module, nn.RNNBase):
            weights = {name: known[at + name] for name, _ in module.named_parameters()}
            _same([dims[1] for name, dims in weights.items() if name.startswith("weight_hh")])
            for dims in weights.values() if module.proj_size else ():
                for node in (dims[0], *(dims[1:] if dims is not weights["weight_ih_l0"] else ())):
                    freeze(node, "a recurrent layer with projections tells sizes from one another")
        elif isinstance(module, nn.MultiheadAttention):
            out = next(dims for name, dims in known.items() if name.startswith(f"{at}out_proj.") and len(dims) == 2)
            same = [*out, known[f"{at}in_proj_weight"][1]] if f"{at}in_proj_weight" in known else [*out]
            for name in ("q_proj_weight", "k_proj_weight", "v_proj_weight"):
                if at + name in known:
                    same.append(known[at + name][0])
            if f"{at}q_proj_weight" in known:
                same.append(known[f"{at}q_proj_weight"][1])
            _same(same)
        elif any(type(vars(module).get(name)) is int for name in WIDTHS):
            width = next(vars(module)[name] for name in WIDTHS if type(vars(module).get(name)) is int)
            outputs = [known.get(f"{at}{child}.weight", [None])[0] for child, _ in module.named_children()]
            # with a single head, no product shows that all projections have the width of a head
            _same([node for node in outputs if node is not None and node.size == width and find(node).kind is None])


def _heads(node: Node) -> Iterator[tuple[Node, Node]]:
    """Yield (heads, head width) for every view that has split `node` into these."""
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
