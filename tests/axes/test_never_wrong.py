"""The law: a sub-model is right, or there is none. Models made to break it.

Where a cut cannot be followed, a frozen axis, a bad report or an error are all good answers; a smaller model that runs
and computes something else is not.
"""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import nestling
from nestling.nets.attention import Attention
from tests.axes.axes_prove import (
    TOKENS,
    VECTORS,
    Net,
    assert_identity,
    assert_like_zeroed,
    assert_order_is_free,
    outputs,
    some_units,
)


def stream(body, width=8, **members):
    """A stream of `width` that a body adds to, between an embedding and a head."""
    return Net(
        lambda net, x: net.head(net.embed(x) + body(net, net.embed(x))),
        embed=nn.Linear(4, width),
        **members,
        head=nn.Linear(width, 3),
    )


def right_or_refused(model, axes, kept, example, kwexample=None):
    """A sub-model that is right, or an error in its place."""
    try:
        small = nestling.submodel(model, axes, nestling.Plan(kept))
        outputs(small, example, kwexample or {})
    except Exception:
        return
    assert_like_zeroed(model, axes, kept, example, kwexample or {})


# 1. Sizes that the code computes: equal parts must be cut to equal sizes, or their border moves.


def halves(net, x):
    hidden = net.one(x)
    middle = hidden.shape[1] // 2
    return net.head(torch.cat([hidden[:, :middle].relu(), hidden[:, middle:].sigmoid()], 1))


def chunks(net, x):
    left, right = net.one(x).chunk(2, 1)
    return net.head(torch.cat([left.tanh(), net.two(right).relu()], 1))


def split_in_half(net, x):
    left, right = net.one(x).split(net.one.out_features // 2, 1)
    return net.head(torch.cat([left.tanh(), right.relu()], 1))


def thirds(net, x):
    q, k, v = net.one(x).chunk(3, -1)
    return net.head((q * k).sum(-1, keepdim=True) * v)


EQUAL_PARTS = {
    "halves": lambda: Net(halves, one=nn.Linear(4, 8), head=nn.Linear(8, 3)),
    "chunks": lambda: Net(chunks, one=nn.Linear(4, 8), two=nn.Linear(4, 4), head=nn.Linear(8, 3)),
    "split": lambda: Net(split_in_half, one=nn.Linear(4, 8), head=nn.Linear(8, 3)),
    "query-key-value": lambda: Net(thirds, one=nn.Linear(4, 12), head=nn.Linear(4, 3)),
}


@pytest.mark.parametrize("name", EQUAL_PARTS)
@pytest.mark.parametrize("left", [1, 2, 3])
def test_equal_parts_of_a_chunk_cannot_be_cut_apart(name, left):
    """Masks (FedMorph) and per-axis widths cut axes to sizes of their own; `check` has called the map proved."""
    model = EQUAL_PARTS[name]()
    axes = nestling.trace(model, *VECTORS)
    nestling.check(model, axes, *VECTORS).raise_if_bad()
    names = list(axes.axes)
    kept = {name: range(left if name == names[0] else 4 - left) for name in names if axes.axes[name] == 4}
    right_or_refused(model, axes, {name: list(units) for name, units in kept.items()}, VECTORS)


# 2. Numbers of heads and groups: `plan` may cut them where they are named.


def cuts_heads(model, example):
    """The map, and half of the heads or groups it has; none where it holds them, which is a good answer too."""
    axes = nestling.trace(model, *example)
    heads = [name for name in axes.axes if name in axes.groups]
    plan = nestling.plan(axes, width=dict.fromkeys(heads, 0.5))
    return axes, {name: plan.index(name).tolist() for name in plan.runs}


def by_hand(name):
    """Attention without scale that keeps the number of its heads under `name`."""

    def run(net, x):
        heads = getattr(net, name)
        q, k, v = (layer(x).unflatten(-1, (heads, -1)).transpose(1, 2) for layer in (net.q, net.k, net.v))
        return net.o(F.scaled_dot_product_attention(q, k, v, scale=1.0).transpose(1, 2).flatten(2))

    return run


@pytest.mark.parametrize("name", ["num_heads", "n_heads", "heads", "h", "groups_of_units"])
def test_heads_by_any_name(name):
    """Half of the heads, each as wide as before, must not become all heads, each half as wide."""
    model = stream(by_hand(name), **{key: nn.Linear(8, 8) for key in "qkvo"}, **{name: 4})
    axes, kept = cuts_heads(model, TOKENS)
    right_or_refused(model, axes, kept, TOKENS)


def test_heads_of_the_papers_transformers():
    """The attention of `nestling.nets` with half of its heads is the whole one without the others."""
    model = stream(lambda net, x: net.attention(x), attention=Attention(8, heads=4))
    axes, kept = cuts_heads(model, TOKENS)
    right_or_refused(model, axes, kept, TOKENS)


def test_groups_in_code():
    """A softmax in four groups, half of which are cut away: not four groups of half the width."""
    model = Net(
        lambda net, x: net.head(net.one(x).unflatten(-1, (4, -1)).softmax(-1).flatten(-2)),
        one=nn.Linear(4, 16),
        head=nn.Linear(16, 3),
    )
    axes, kept = cuts_heads(model, VECTORS)
    right_or_refused(model, axes, kept, VECTORS)


# 3. Small axes: of two units three quarters are two, so nothing is tried.


def narrow_heads(net, x):
    q, k, v = (layer(x).unflatten(-1, (-1, 2)).transpose(1, 2) for layer in (net.q, net.k, net.v))
    return net.o(F.scaled_dot_product_attention(q, k, v, scale=1.0).transpose(1, 2).flatten(2))


def turned(net, x):
    hidden = net.one(x)
    return net.head(hidden * torch.cat([-hidden[:, 2:], hidden[:, :2]], 1))


def pairs_after_groups(net, x):
    """Two groups of two pairs; with half of each pair, a view by two makes pairs of what were none."""
    pairs = net.conv(net.one(x)[:, :, None])[:, :, 0].unflatten(-1, (-1, 2))
    return net.head((pairs * pairs.sum(-1, keepdim=True)).flatten(1))


def two_views(net, x):
    """Two halves, and pairs, each unit taking something of its own group."""
    for shape in ((2, -1), (-1, 2)):
        grouped = net.one(x).unflatten(-1, shape)
        yield net.head((grouped + grouped.sum(-1, keepdim=True).relu()).flatten(1))


SMALL = {
    "two views": (
        lambda: Net(lambda net, x: sum(two_views(net, x)), one=nn.Linear(4, 8), head=nn.Linear(8, 3)),
        VECTORS,
    ),
    "pairs after groups": (
        lambda: Net(
            pairs_after_groups,
            one=nn.Linear(4, 8),
            conv=nn.Conv1d(8, 8, 1, groups=2),
            head=nn.Linear(8, 3),
        ),
        VECTORS,
    ),
    "heads": (lambda: stream(narrow_heads, **{key: nn.Linear(8, 8) for key in "qkvo"}), TOKENS),
    "pairs": (
        lambda: Net(
            lambda net, x: net.head(net.one(x).unflatten(-1, (-1, 2)).softmax(-1).flatten(-2)),
            one=nn.Linear(4, 8),
            head=nn.Linear(8, 3),
        ),
        VECTORS,
    ),
    "turned": (lambda: Net(turned, one=nn.Linear(4, 4), head=nn.Linear(4, 3)), VECTORS),
}


@pytest.mark.parametrize("name", SMALL)
def test_a_size_of_two_written_into_the_code_is_found(name):
    build, example = SMALL[name]
    model = build()
    axes = nestling.trace(model, *example)
    if nestling.check(model, axes, *example).ok:
        plan = nestling.plan(axes, width=0.5)
        kept = {axis: plan.index(axis).tolist() for axis in plan.runs}
        if name != "pairs":  # a softmax over a unit that is zero is not one without it
            assert_like_zeroed(model, axes, kept, example, {})
        for seed in range(3):
            assert_order_is_free(model, axes, kept, example, {}, seed)


# 4. Blocks: what is left without one is the model without it.


def bodies():
    return nn.ModuleList(nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 8)) for _ in range(3))


def added_outside(net, x):
    x = net.embed(x)
    for body in net.bodies:
        x = x + body(x)
    return net.head(x)


def gated_outside(net, x):
    x = net.embed(x)
    for body in net.bodies:
        x = x * body(x).sigmoid()
    return net.head(x)


def side_by_side(net, x):
    x = net.embed(x)
    return net.head(x + sum(body(x) for body in net.bodies))


@pytest.mark.parametrize("run", [added_outside, gated_outside, side_by_side])
def test_a_body_inside_a_residual_is_no_block(run):
    """``x + body(x)`` without its body is ``x``; a block that hands on its input would make it ``x + x``."""
    model = Net(run, embed=nn.Linear(4, 8), bodies=bodies(), head=nn.Linear(8, 3))
    axes = nestling.trace(model, *VECTORS)
    if not axes.blocks:
        return
    small = nestling.submodel(model, axes, nestling.plan(axes, blocks=list(axes.blocks)[:-1]))
    without = copy.deepcopy(model)
    without.bodies = without.bodies[:-1]
    torch.testing.assert_close(small(*VECTORS), without(*VECTORS))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 8)

    def forward(self, x):
        return x + self.body(x).relu()


def shared_blocks():
    """Three residual blocks, the second of which has the weight of the first."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Sequential(Block(), Block(), Block()), nn.Linear(8, 3))
    model[1][1].body.weight = model[1][0].body.weight
    return model


def test_blocks_that_add_inside_are_found_and_dropped():
    model = nn.Sequential(nn.Linear(4, 8), nn.Sequential(Block(), Block(), Block()), nn.Linear(8, 3))
    axes = nestling.trace(model, *VECTORS)
    assert list(axes.blocks) == ["1.0", "1.1", "1.2"]
    small = nestling.submodel(model, axes, nestling.plan(axes, blocks=["1.0", "1.2"]))
    left = nn.Sequential(model[0], model[1][0], model[1][2], model[2])
    assert torch.equal(small(*VECTORS), left(*VECTORS))


@pytest.mark.parametrize("width", [1.0, 0.5])
def test_a_weight_shared_with_a_dropped_block_is_still_cut(width):
    model = shared_blocks()
    axes = nestling.trace(model, *VECTORS)
    plan = nestling.plan(axes, width, blocks=["1.1", "1.2"])
    small = nestling.submodel(model, axes, plan)
    wanted = nestling.extract(axes, plan, model.state_dict())
    assert {name: t.shape for name, t in small.state_dict().items()} == {name: t.shape for name, t in wanted.items()}
    small(*VECTORS)


def test_a_sub_model_never_shares_memory_with_the_model():
    model = shared_blocks()
    before = copy.deepcopy(model.state_dict())
    axes = nestling.trace(model, *VECTORS)
    small = nestling.submodel(model, axes, nestling.plan(axes, blocks=["1.1", "1.2"]))
    with torch.no_grad():
        for parameter in small.parameters():
            parameter.add_(1)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_a_weight_shared_with_a_dropped_block_is_merged():
    """P7: what a client trained arrives, under whichever of its names."""
    model = shared_blocks()
    axes = nestling.trace(model, *VECTORS)
    plan = nestling.plan(axes, blocks=["1.1", "1.2"])
    tally = nestling.Tally(axes, model.state_dict())
    update = {name: tensor + 1 for name, tensor in nestling.extract(axes, plan, model.state_dict()).items()}
    tally.add(update, plan)
    merged = tally.value()
    assert torch.equal(merged["1.1.body.weight"], update["1.1.body.weight"])
    assert torch.equal(merged["1.0.body.weight"], merged["1.1.body.weight"])


# 5. Operations that pass the tracer by.


@torch.library.custom_op("nestling_tests::double_into", mutates_args=("out",))
def double_into(x: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(2 * x)


double_into.register_fake(lambda x, out: None)


def by_custom_op(net, x):
    hidden = net.one(x)
    out = hidden.new_empty(hidden.shape)
    torch.ops.nestling_tests.double_into(hidden, out)
    return net.head(out)


def by_foreach(net, x):
    hidden = net.one(x)
    out = hidden.new_zeros(hidden.shape)
    torch._foreach_add_([out], [hidden])
    return net.head(out)


@pytest.mark.parametrize("run", [by_custom_op, by_foreach])
def test_an_operation_that_returns_nothing_couples_or_freezes(run):
    """What is written into a tensor is tied to it, although the operation has no result to look at."""
    model = nn.Sequential(nn.Linear(4, 4), Net(run, one=nn.Linear(4, 8), head=nn.Linear(8, 3)))
    axes = nestling.trace(model, *VECTORS)
    one, head = axes.dims["1.one.weight"][0], axes.dims["1.head.weight"][1]
    assert one == head or not {str(one), str(head)} & set(axes.axes)


def with_zeros(net, x):
    hidden = net.one(x)
    return net.head(torch.cat([hidden, hidden.new_zeros(len(x), 4)], 1))


def test_zeros_of_a_written_size_are_not_an_axis():
    """The columns that meet zeros made by the code cannot be cut: the code makes as many as before."""
    model = Net(with_zeros, one=nn.Linear(4, 8), head=nn.Linear(12, 3))
    axes = nestling.trace(model, *VECTORS)
    assert axes.axes == {"one": 8}
    nestling.check(model, axes, *VECTORS).raise_if_bad()
    assert_like_zeroed(model, axes, {"one": [1, 4]}, VECTORS, {})


@pytest.mark.parametrize("residual", [False, True])
def test_joining_with_an_empty_tensor(residual):
    def run(net, x):
        one = net.one(x)
        joined = torch.cat([x.new_empty(len(x), 0), one], 1)
        return net.head(joined + one if residual else joined)

    model = Net(run, one=nn.Linear(4, 8), head=nn.Linear(8, 3))
    axes = nestling.trace(model, *VECTORS)
    assert axes.axes == {"one": 8}
    assert nestling.AxisMap.from_json(axes.to_json()) == axes
    assert_like_zeroed(model, axes, {"one": [1, 4]}, VECTORS, {})


# 6. Layers that hold their sizes in odd places.


def test_an_attribute_called_dropped_makes_no_block():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    model[1].dropped = 0.1  # such as a rate that someone writes down
    assert nestling.trace(model, *VECTORS).axes == {"model.0": 8}


def test_attention_whose_projection_is_parametrised():
    layer = nn.MultiheadAttention(8, 2, batch_first=True)
    nn.utils.parametrizations.spectral_norm(layer.out_proj)
    model = stream(lambda net, x: net.layer(x, x, x)[0], layer=layer)
    axes = nestling.trace(model.eval(), *TOKENS)
    for seed in range(2):
        assert_order_is_free(model, axes, some_units(axes, seed), TOKENS, {})


def test_merging_any_sub_model_of_a_shared_module_changes_nothing():
    """One module under several names: ALBERT's way of being deep."""
    block = Block()
    model = nn.Sequential(nn.Linear(4, 8), nn.ModuleList([block] * 3)[0], block, block, nn.Linear(8, 3))
    axes = nestling.trace(model, *VECTORS)
    assert axes.axes == {"model.0": 8}
    assert_identity(model, axes, nestling.plan(axes, width=0.5))
    assert_like_zeroed(model, axes, {"model.0": [0, 3, 6]}, VECTORS, {})
