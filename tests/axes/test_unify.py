"""The union-find of dims against a plain reading of what its operations mean.

A permutation of every leaf gives a permutation of every node that is made of leaves. Whatever was done to the nodes,
and in whatever order, these permutations must fit together: the two sides of a unification agree, a factor moves whole
blocks, a segment moves its own places. That is exactly what makes a cut along leaves an aligned slice.
"""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nestling.axes.unify import (
    Clash,
    Node,
    concat,
    factor,
    find,
    freeze,
    is_frozen,
    leaves,
    product,
    segment,
    unify,
    use,
)

LIMIT = 96


def places(node, moved):
    """Where every place of `node` goes when the units of its leaves go where `moved` says."""
    node = find(node)
    if node.kind is None:
        return list(range(node.size)) if node.frozen else moved[node]
    if node.kind == "product":
        result = [0]
        for part in node.parts:
            inner = places(part, moved)
            result = [place * len(inner) + one for place in result for one in inner]
        return result
    result = []
    for part in node.parts:
        result += [len(result) + place for place in places(part, moved)]
    return result


class Shuffle(dict):
    """A random permutation for every leaf, drawn when it is asked for."""

    def __init__(self, seed):
        super().__init__()
        self.draw = random.Random(seed)

    def __missing__(self, leaf):
        self[leaf] = self.draw.sample(range(leaf.size), leaf.size)
        return self[leaf]


def joined(kind, parts, moved):
    """The places of a product or sum, made from those of its parts by hand."""
    lists = [places(part, moved) for part in parts]
    if kind == "sum":
        starts = [sum(map(len, lists[:k])) for k in range(len(lists))]
        return [start + place for start, one in zip(starts, lists, strict=True) for place in one]
    result = [0]
    for one in lists:
        result = [place * len(one) + inner for place in result for inner in one]
    return result


class World:
    """Nodes, and everything that was ever said about them: (whole, kind, parts) or (one, "same", [other])."""

    def __init__(self):
        self.nodes = [Node(4), Node(6)]
        self.facts = []

    def do(self, verb, i, j, k):
        a, b = self.nodes[i % len(self.nodes)], self.nodes[j % len(self.nodes)]
        try:
            getattr(self, verb)(a, b, k)
        except Clash:  # as the tracer does
            for node in (a, b):
                freeze(node, "clash")

    def new(self, _a, _b, k):
        self.nodes.append(Node([2, 3, 4, 6, 8, 12, 24][k % 7]))

    def freeze(self, a, _b, _k):
        freeze(a, "by hand")

    def factor(self, a, _b, k):
        divisors = [n for n in range(1, a.size + 1) if a.size % n == 0]
        parts = factor(a, divisors[k % len(divisors)])
        self.record(a, "product", parts)

    def segment(self, a, _b, k):
        first = 1 + k % a.size
        parts = segment(a, [first, a.size - first] if first < a.size else [first])
        self.record(a, "sum", parts)

    def product(self, a, b, _k):
        if a.size * b.size <= LIMIT:
            self.record(product([a, b]), "product", [a, b])

    def concat(self, a, b, _k):
        if a.size + b.size <= LIMIT:
            self.record(concat([a, b]), "sum", [a, b])

    def unify(self, a, b, _k):
        if a.size == b.size:
            self.facts.append((unify(a, b), "same", [a, b]))

    def record(self, whole, kind, parts):
        self.facts.append((whole, kind, list(parts)))
        self.nodes += [whole, *parts]

    def check(self, seed):
        moved = Shuffle(seed)
        for whole, kind, parts in self.facts:
            if kind == "same":
                assert all(places(part, moved) == places(whole, moved) for part in parts)
            else:
                assert places(whole, moved) == joined(kind, parts, moved)


steps = st.lists(
    st.tuples(
        st.sampled_from(
            ["new", "factor", "factor", "segment", "product", "concat", "unify", "unify", "unify", "freeze"]
        ),
        st.integers(0, 30),
        st.integers(0, 30),
        st.integers(0, 30),
    ),
    max_size=14,
)


@settings(max_examples=250, deadline=None)
@given(steps, st.integers(0, 3))
def test_everything_ever_said_stays_true(story, seed):
    world = World()
    for step in story:
        world.do(*step)
    world.check(seed)


@settings(max_examples=80, deadline=None)
@given(steps)
def test_sizes_are_kept(story):
    world = World()
    sizes = []
    for step in story:
        world.do(*step)
        sizes += [node.size for node in world.nodes[len(sizes) :]]
    for node, size in zip(world.nodes, sizes + [node.size for node in world.nodes[len(sizes) :]], strict=True):
        root = find(node)
        assert node.size == root.size == size
        assert len(places(node, Shuffle(0))) == size
        if root.kind is not None:
            total = math.prod if root.kind == "product" else sum
            assert total(part.size for part in root.parts) == size


@settings(max_examples=80, deadline=None)
@given(steps, st.integers(0, 30))
def test_frozen_stays_frozen_and_spreads(story, which):
    world = World()
    for step in story:
        world.do(*step)
    node = world.nodes[which % len(world.nodes)]
    fresh = Node(node.size)
    unify(fresh, node)
    freeze(node, "the first reason")
    freeze(node, "another")
    assert is_frozen(node)
    assert is_frozen(fresh)
    assert all(leaf.frozen and leaf.frozen != "another" for leaf in leaves(fresh))


def test_the_property_can_fail():
    """Halves said to be one are found out when they are not."""
    world = World()
    whole = Node(8)
    left, right = Node(4), Node(4)
    world.record(whole, "sum", [left, right])
    with pytest.raises(AssertionError):
        world.check(0)


# What unification must not do: couple more than the operations say.


def free_leaves(*nodes):
    return [leaf for node in nodes for leaf in leaves(node) if not leaf.frozen]


def test_factors_stay_apart():
    node = Node(24)
    outer, inner = factor(node, 4)
    assert (outer.size, inner.size) == (4, 6)
    assert find(outer) is not find(inner)
    assert unify(product([outer, inner]), node) is find(node)
    assert len(set(free_leaves(node))) == 2


def test_segments_stay_apart():
    node = Node(9)
    one, two, three = segment(node, [2, 3, 4])
    assert len({find(one), find(two), find(three)}) == 3
    unify(concat([one, two, three]), node)
    assert len(set(free_leaves(node))) == 3


def test_finer_factors_refine_coarser_ones():
    a, b = Node(24), Node(24)
    coarse, fine = factor(a, 4), factor(b, 8)
    unify(a, b)
    assert [leaf.size for leaf in leaves(a)] == [4, 2, 3]
    assert list(leaves(product(coarse))) == list(leaves(product(fine)))


def test_finer_segments_refine_coarser_ones():
    a, b = Node(10), Node(10)
    one, two = segment(a, [4, 6]), segment(b, [7, 3])
    unify(a, b)
    assert [leaf.size for leaf in leaves(a)] == [4, 3, 3]
    assert list(leaves(concat(one))) == list(leaves(concat(two)))


def test_equal_segments_seen_as_a_product_are_one():
    q, k, v = Node(8), Node(8), Node(8)
    outer, inner = factor(concat([q, k, v]), 3)
    assert outer.size == 3
    assert find(q) is find(k) is find(v) is find(inner)


def test_a_product_met_by_equal_segments_freezes_their_number():
    whole, q, k = Node(16), Node(8), Node(8)
    outer, inner = factor(whole, 2)
    unify(whole, concat([q, k]))
    assert find(outer).frozen
    assert not find(inner).frozen
    assert find(q) is find(k) is find(inner)


@pytest.mark.parametrize(
    ("do", "why"),
    [
        (lambda: unify(Node(4), Node(6)), "4 and 6"),
        (lambda: factor(Node(10), 4), "10"),
        (lambda: segment(product([Node(3), Node(4)]), [5, 7]), "12"),
        (lambda: factor(concat([Node(3), Node(5)]), 2), "8"),
    ],
)
def test_what_cannot_be_said_is_a_clash(do, why):
    with pytest.raises(Clash, match=why):
        do()


def test_a_dim_of_one_is_never_cut_and_disappears_from_products():
    one, node = Node(1), Node(6)
    assert is_frozen(one)
    assert product([one, node, Node(1)]) is node
    assert factor(node, 1)[1] is node
    assert factor(node, 6)[0] is node


def test_reasons_travel_down_and_the_first_is_kept():
    whole = Node(12)
    freeze(whole, "first")
    outer, inner = factor(whole, 3)
    assert {find(outer).frozen, find(inner).frozen} == {"first"}
    other = Node(12)
    freeze(other, "second")
    unify(other, whole)
    assert {leaf.frozen for leaf in leaves(whole)} == {"first"}


def test_a_free_dim_takes_the_reason_of_what_it_meets():
    free, held = Node(12), Node(12, "because")
    outer, _ = factor(free, 3)
    unify(free, held)
    assert find(outer).frozen == "because"


def test_use_reaches_all_parts_and_survives_unification():
    whole = Node(12)
    use(whole)
    outer, inner = factor(whole, 3)
    assert outer.used
    assert inner.used
    other = Node(12)
    unify(other, whole)
    assert all(leaf.used for leaf in leaves(other))
    used, idle = Node(5), Node(5)
    use(used)
    assert find(unify(idle, used)).used


def test_joining_with_nothing_changes_nothing():
    """``cat`` with an empty tensor gives the same dim; unified with itself it must not run in circles."""
    node = Node(6)
    same = concat([Node(0), node])
    assert same.size == 6
    unify(same, node)
    assert [leaf.size for leaf in leaves(same)] == [6]
