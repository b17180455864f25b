"""Union-find over dims while a model runs: which dims are the same, and how they split and join.

A `Node` represents one dim of some tensor. An operation *unifies* dims that must be equal: from then on they are one.
A view factors a node into an outer and an inner one (a product), a slice segments it (a sum), and an operation that
cutting could not follow freezes it, with the reason.

Coupling too much is always safe (the two dims are cut alike); coupling too little never is.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Literal

Kind = Literal["product", "sum"]
Role = Literal["hidden", "input", "output"]


class Clash(Exception):
    """Two dims are combined in a way this algebra cannot express; the caller freezes them."""


class Node:
    """One dim: a leaf, or a product or sum of other nodes.

    `frozen` is the reason why a leaf cannot be cut, `role` whether that is because it is an input or an output of the
    model, `hint` a suffix for the name of a part, `used` whether anything was computed from it (false for a dim that is
    only sliced off), `produced` whether a parameter produces it in an activation (false for a dim that is only combined
    with zeros made by the code).
    """

    __slots__ = ("frozen", "hint", "kind", "parent", "parts", "produced", "role", "size", "used")

    def __init__(self, size: int, frozen: str = "", hint: str = "", role: Role = "hidden") -> None:
        self.size = size
        self.parent: Node | None = None
        self.kind: Kind | None = None
        self.parts: list[Node] = []
        self.frozen = frozen or ("one" if size == 1 else "")
        self.role = role
        self.hint = hint
        self.used = False
        self.produced = False


def find(node: Node) -> Node:
    """Return the representative of all nodes that `node` was unified with."""
    root = node
    while root.parent is not None:
        root = root.parent
    while node is not root:  # path compression
        assert node.parent is not None
        node.parent, node = root, node.parent
    return root


def leaves(node: Node) -> Iterator[Node]:
    """Yield the leaf nodes of `node`, left to right."""
    node = find(node)
    if node.kind is None:
        yield node
    for part in node.parts:
        yield from leaves(part)


def is_frozen(node: Node) -> bool:
    """Return whether nothing in `node` can be cut."""
    return all(leaf.frozen for leaf in leaves(node))


def freeze(node: Node, why: str, role: Role = "hidden") -> None:
    """Freeze every leaf of `node`; the first reason given is kept, with its role."""
    for leaf in leaves(node):
        if not leaf.frozen:
            leaf.frozen, leaf.role = why, role


def use(node: Node) -> None:
    """Record that something was computed from `node`."""
    for leaf in leaves(node):
        leaf.used = True


def product(parts: Sequence[Node]) -> Node:
    """Return the product of nodes, in row-major order."""
    return _join("product", [part for part in _flat("product", parts) if part.size != 1])


def concat(parts: Sequence[Node]) -> Node:
    """Return the sum of nodes: segments one after the other."""
    return _join("sum", [part for part in _flat("sum", parts) if part.size])


def _flat(kind: Kind, parts: Sequence[Node]) -> list[Node]:
    flat: list[Node] = []
    for part in map(find, parts):
        flat += _flat(kind, part.parts) if part.kind == kind else [part]
    return flat


def _join(kind: Kind, parts: list[Node]) -> Node:
    if len(parts) == 1:
        return parts[0]
    sizes = [part.size for part in parts]
    joined = Node(math.prod(sizes) if kind == "product" else sum(sizes))
    if all(part.kind is None and part.frozen for part in parts):
        reason = next((part for part in parts if part.frozen != "one"), Node(1))
        joined.frozen, joined.role = reason.frozen, reason.role
    else:
        joined.kind, joined.parts = kind, parts
    return joined


def _become(leaf: Node, kind: Kind, parts: list[Node]) -> None:
    leaf.kind, leaf.parts = kind, parts
    for part in parts:
        freeze(part, leaf.frozen, leaf.role)
        part.used = part.used or leaf.used
        part.produced = part.produced or leaf.produced
    leaf.frozen = ""


def factor(node: Node, outer: int, hints: tuple[str, str] = ("", "")) -> tuple[Node, Node]:
    """Split `node` into (outer, inner) factors, the first of size `outer`."""
    node = find(node)
    inner, rest = divmod(node.size, outer)
    if rest:
        raise Clash(f"a size of {node.size} seen as multiples of {outer}")
    if outer == 1 or inner == 1:
        return (Node(1), node) if outer == 1 else (node, Node(1))
    if node.kind is None:
        _become(node, "product", [Node(outer, hint=hints[0]), Node(inner, hint=hints[1])])
        return node.parts[0], node.parts[1]
    if node.kind == "product":
        front: list[Node] = []
        back = deque(_flat("product", [node]))
        need = outer
        while need > 1:
            part = back.popleft()
            if part.size > need:
                part, left = factor(part, need, hints)
                back.appendleft(left)
            if need % part.size:
                raise Clash(f"a product of {node.size} seen as multiples of {outer}")
            front.append(part)
            need //= part.size
        return product(front), product(list(back))
    # a sum: every segment must consist of whole inner units, which are then unified (q + k + v seen as 3 × width)
    if any(part.size % inner for part in _flat("sum", [node])):
        raise Clash(f"joined segments of {node.size} seen as multiples of {outer}")
    pairs = [factor(part, part.size // inner, hints) for part in _flat("sum", [node])]
    one = pairs[0][1]
    for _, other in pairs[1:]:
        one = unify(one, other)
    return concat([first for first, _ in pairs]), one


def segment(node: Node, sizes: Sequence[int]) -> list[Node]:
    """Split `node` into consecutive segments of these sizes.

    Equal segments of a leaf are unified: code that halves a dim needs halves of equal size.
    """
    node = find(node)
    assert sum(sizes) == node.size
    if len(sizes) == 1:
        return [node]
    if node.kind is None:
        if node.frozen:
            return [Node(size, node.frozen, role=node.role) for size in sizes]
        if len(set(sizes)) == 1:
            _become(node, "sum", [Node(sizes[0])] * len(sizes))
        else:
            _become(node, "sum", [Node(size, hint=str(k)) for k, size in enumerate(sizes)])
        return node.parts
    if node.kind == "product":  # whole units of the outermost factor
        first, others = find(node.parts[0]), node.parts[1:]
        inner = node.size // first.size
        if any(size % inner for size in sizes):
            raise Clash(f"a product of {node.size} sliced inside its factors")
        return [product([part, *others]) for part in segment(first, [size // inner for size in sizes])]
    back = deque(_flat("sum", [node]))
    result = []
    for size in sizes:
        group, need = [], size
        while need:
            part = back.popleft()
            if part.size > need:
                part, left = segment(part, [need, part.size - need])
                back.appendleft(left)
            group.append(part)
            need -= part.size
        result.append(concat(group))
    return result


def unify(a: Node, b: Node) -> Node:
    """Make `a` and `b` one dim and return it."""
    a, b = find(a), find(b)
    if a is b:
        return a
    if a.size != b.size:
        raise Clash(f"sizes {a.size} and {b.size} used as one")
    if a.kind is None and (b.kind is not None or (a.hint and not b.hint)):
        a, b = b, a
    if b.kind is None:
        b.parent = a
        if b.frozen:
            freeze(a, b.frozen, b.role)
        for leaf in leaves(a):
            leaf.used = leaf.used or b.used
            leaf.produced = leaf.produced or b.produced
        a.hint = a.hint or b.hint
        return a
    if a.kind == b.kind == "product":
        _zip(a, b, lambda part, size: list(factor(part, size)))
    elif a.kind == b.kind == "sum":
        _zip(a, b, lambda part, size: segment(part, [size, part.size - size]))
    else:
        _stack(*((a, b) if a.kind == "product" else (b, a)))
    if find(b) is not find(a):
        find(b).parent = find(a)
    return find(a)


def _zip(a: Node, b: Node, split: object) -> None:
    """Unify two products (or two sums) part by part; split parts if their borders differ."""
    assert a.kind is not None
    left, right = deque(_flat(a.kind, [a])), deque(_flat(a.kind, [b]))
    while left and right:
        x, y = left.popleft(), right.popleft()
        if x.size != y.size:
            big, small, queue = (x, y, left) if x.size > y.size else (y, x, right)
            first, rest = split(big, small.size)  # type: ignore[operator]
            queue.appendleft(rest)
            x, y = first, small
        unify(x, y)


def _stack(whole: Node, segments: Node) -> None:
    """Unify a product with a sum: n equal segments are n stacked copies of one inner dim."""
    parts = _flat("sum", [segments])
    outer, inner = factor(whole, len(parts))
    if any(part.size != inner.size for part in parts):
        raise Clash("a product met joined segments of unequal sizes")
    freeze(outer, "stacked segments")
    for part in parts:
        unify(part, inner)
