"""`check` is the judge: it must let right maps pass and wrong ones not, and say what it saw."""

import itertools

import pytest
import torch
from torch import nn

import nestling
from nestling.axes import Axis
from nestling.axes.dims import Dims, Fixed, Leaf, Product, Sum
from nestling.errors import AxisError, TraceError
from tests.axes.axes_prove import TOKENS, VECTORS, Net, assert_order_is_free, one_sentence, rewired, some_units
from tests.axes.axes_zoo import ZOO


def mlp(*widths):
    layers = []
    for before, width in zip((4, *widths), (*widths, 3), strict=True):
        layers += [nn.Linear(before, width), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def residual(width=8):
    return Net(
        lambda net, x: net.head(net.embed(x) + net.two(net.one(net.embed(x)).relu())),
        embed=nn.Linear(4, width),
        one=nn.Linear(width, width),
        two=nn.Linear(width, width),
        head=nn.Linear(width, 3),
    )


def dims(*parts):
    return Dims(parts)


def loosened(axes, tensor, place, size):
    """The map with one dim of one tensor on an axis of its own."""
    changed = list(axes.dims[tensor])
    changed[place] = Leaf("loose", size)
    return rewired(axes, {"loose": Axis("loose", size)}, **{tensor.replace(".", "__"): Dims(changed)})


def swapped(axes, tensor, one, two):
    """The map with the names of two axes exchanged in one tensor."""
    names = {one: two, two: one}
    changed = [Leaf(names.get(leaf.name, leaf.name), leaf.size) for leaf in axes.dims[tensor]]
    return rewired(axes, **{tensor.replace(".", "__"): Dims(changed)})


def assert_caught(model, axes, *example):
    report = nestling.check(model, axes, *example)
    assert not report.ok
    with pytest.raises(AxisError) as caught:
        report.raise_if_bad()
    assert one_sentence(caught.value)
    return report


# Wrong maps.


@pytest.mark.parametrize("width", [2, 3, 8])
@pytest.mark.parametrize(
    ("tensor", "place"),
    [
        ("embed.weight", 0),
        ("embed.bias", 0),
        ("one.weight", 0),
        ("one.weight", 1),
        ("one.bias", 0),
        ("two.weight", 0),
        ("two.weight", 1),
        ("two.bias", 0),
        ("head.weight", 1),
    ],
)
def test_one_tensor_uncoupled_is_caught(tensor, place, width):
    """Also on axes of two units, where a random permutation is no permutation half of the time."""
    model = residual(width)
    assert_caught(model, loosened(nestling.trace(model, *VECTORS), tensor, place, width), *VECTORS)


@pytest.mark.parametrize("tensor", ["0.weight", "0.bias", "2.weight", "2.bias", "4.weight"])
def test_names_swapped_between_axes_of_one_size_are_caught(tensor):
    model = mlp(8, 8)
    axes = nestling.trace(model, *VECTORS)
    assert_caught(model, swapped(axes, tensor, "model.0", "model.2"), *VECTORS)


@pytest.mark.parametrize("tensor", ["q.weight", "k.bias", "v.weight", "out.weight"])
def test_heads_and_their_width_swapped_are_caught(tensor):
    model = ZOO["attention-apart"].build()
    axes = nestling.trace(model, *TOKENS)
    right = Product((Leaf("q.heads", 2), Leaf("q.head_dim", 4)))
    wrong = Product((Leaf("q.head_dim", 4), Leaf("q.heads", 2)))
    changed = Dims(wrong if dim == right else dim for dim in axes.dims[tensor])
    assert changed != axes.dims[tensor]
    assert_caught(model, rewired(axes, **{tensor.replace(".", "__"): changed}), *TOKENS)


def test_the_classes_freed_are_caught():
    model = mlp(8)
    axes = nestling.trace(model, *VECTORS)
    assert_caught(model, nestling.AxisMap({**axes.table, "model.2": Axis("model.2", 3)}, axes.dims), *VECTORS)


def test_fused_projections_taken_for_one_block_are_caught():
    """NeFL's ViT slices ``in_proj`` as one block: P3."""
    model = ZOO["attention-chunked"].build()
    axes = nestling.trace(model, *TOKENS)
    table = {"block": Axis("block", 24)}
    wrong = rewired(
        axes, table, qkv__weight=dims(Leaf("block", 24), axes.dims["qkv.weight"][1]), qkv__bias=dims(Leaf("block", 24))
    )
    assert_caught(model, wrong, *TOKENS)


def test_a_flattened_layer_cut_in_the_wrong_order_is_caught():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, 3))
    image = torch.randn(2, 3, 6, 6)
    axes = nestling.trace(model, image)
    channels = Leaf("model.0", 8)
    assert axes.dims["3.weight"][1] == Product((channels, Fixed(16)))
    wrong = dims(axes.dims["3.weight"][0], Product((Fixed(16), channels)))
    assert_caught(model, rewired(axes, **{"3__weight": wrong}), image)


def test_segments_in_the_wrong_order_are_caught():
    model = Net(
        lambda net, x: net.head(torch.cat([net.one(x), net.two(x).relu()], 1)),
        one=nn.Linear(4, 6),
        two=nn.Linear(4, 6),
        head=nn.Linear(12, 3),
    )
    axes = nestling.trace(model, *VECTORS)
    assert axes.dims["head.weight"][1] == Sum((Leaf("one", 6), Leaf("two", 6)))
    wrong = dims(axes.dims["head.weight"][0], Sum((Leaf("two", 6), Leaf("one", 6))))
    assert_caught(model, rewired(axes, head__weight=wrong), *VECTORS)


def test_a_quiet_part_of_the_output_is_not_drowned_by_a_loud_one():
    model = Net(
        lambda net, x: torch.cat([1e8 * net.b(net.a(x).relu()), net.d(net.c(x).relu())], 1),
        a=nn.Linear(4, 8),
        b=nn.Linear(8, 3),
        c=nn.Linear(4, 8),
        d=nn.Linear(8, 3),
    )
    axes = nestling.trace(model, *VECTORS)
    nestling.check(model, axes, *VECTORS).raise_if_bad()
    assert_caught(model, loosened(axes, "d.weight", 1, 8), *VECTORS)


# Sizes written into the code.

BAKED = {
    "a slice": lambda: Net(lambda net, x: net.head(net.one(x)[:, :4]), one=nn.Linear(4, 8), head=nn.Linear(4, 3)),
    "a slice from behind": lambda: Net(
        lambda net, x: net.head(net.one(x)[:, -4:]), one=nn.Linear(4, 8), head=nn.Linear(4, 3)
    ),
    "a slice and its rest": lambda: Net(
        lambda net, x: net.head(net.one(x)[:, :4].relu() + net.one(x)[:, 4:]), one=nn.Linear(4, 8), head=nn.Linear(4, 3)
    ),
    "a split": lambda: Net(
        lambda net, x: net.head(net.one(x).split([6, 2], 1)[0]), one=nn.Linear(4, 8), head=nn.Linear(6, 3)
    ),
    "a view": lambda: Net(
        lambda net, x: net.head(net.one(x).view(len(x), 4, 2).sum(2)), one=nn.Linear(4, 8), head=nn.Linear(4, 3)
    ),
    "an inner width": lambda: Net(
        lambda net, x: net.head(net.one(x).unflatten(-1, (-1, 4)).softmax(-1).flatten(1)),
        one=nn.Linear(4, 16),
        head=nn.Linear(16, 3),
    ),
    "an unflatten": lambda: nn.Sequential(nn.Linear(4, 12), nn.Unflatten(1, (3, 4)), nn.Flatten(), nn.Linear(12, 3)),
    "a norm": lambda: Net(
        lambda net, x: net.head(nn.functional.layer_norm(net.one(x), (8,))), one=nn.Linear(4, 8), head=nn.Linear(8, 3)
    ),
    "a start state": lambda: Net(
        lambda net, x: net.head(net.cell(x, x.new_zeros(len(x), 6))), cell=nn.GRUCell(4, 6), head=nn.Linear(6, 3)
    ),
}


@pytest.mark.parametrize("name", BAKED)
def test_a_size_written_into_the_forward_is_held_or_caught(name):
    """Where `trace` did not hold the axis, `check` must tell; what both let pass must be right."""
    model = BAKED[name]()
    try:
        axes = nestling.trace(model, *VECTORS)
    except TraceError:
        return  # all of it is held
    report = nestling.check(model, axes, *VECTORS)
    if report.ok:
        for seed in range(3):
            kept = some_units(axes, seed, least=2)
            assert_order_is_free(model, axes, kept, VECTORS, {}, seed)
    else:
        with pytest.raises(AxisError) as caught:
            report.raise_if_bad()
        assert one_sentence(caught.value)


def test_a_slice_written_into_the_forward_is_caught():
    model = BAKED["a slice"]()
    assert_caught(model, nestling.trace(model, *VECTORS), *VECTORS)


# Models that cannot be judged, and models that only seem so.


def by_chance(net, x):
    return net.head(net.one(x).relu()) + torch.randn(3)


def test_a_model_that_is_never_the_same_twice_is_caught():
    model = Net(by_chance, one=nn.Linear(4, 8), head=nn.Linear(8, 3))
    assert_caught(model, nestling.trace(model, *VECTORS), *VECTORS)


def test_dropout_is_no_chance():
    """Proofs run in eval mode, whatever mode the model is in."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3)).train()
    nestling.check(model, nestling.trace(model, *VECTORS), *VECTORS).raise_if_bad()
    assert model.training


def test_an_output_that_depends_on_nothing_proves_nothing():
    model = Net(lambda net, x: net.head(net.one(x) * 0), one=nn.Linear(4, 8), head=nn.Linear(8, 3))
    assert_caught(model, nestling.trace(model, *VECTORS), *VECTORS)


@pytest.mark.parametrize("value", [-1e4, -1e9, float("-inf"), torch.finfo(torch.float32).min])
def test_masked_outputs_are_judged_by_the_rest(value):
    """Scores of what cannot be chosen are minus infinity, or as good as, in many models."""
    model = Net(
        lambda net, x: net.head(net.one(x).relu()).masked_fill(torch.tensor([False, False, True]), value),
        one=nn.Linear(4, 8),
        head=nn.Linear(8, 3),
    )
    axes = nestling.trace(model, *VECTORS)
    nestling.check(model, axes, *VECTORS).raise_if_bad()
    assert_caught(model, loosened(axes, "head.weight", 1, 8), *VECTORS)


@pytest.mark.parametrize("fill", [torch.zeros, torch.ones])
def test_a_plain_example_is_enough(fill):
    model = mlp(8, 6)
    axes = nestling.trace(model, fill(2, 4))
    nestling.check(model, axes, fill(2, 4)).raise_if_bad()
    assert_caught(model, loosened(axes, "2.weight", 1, 8), fill(2, 4))


def test_weights_of_zero_are_no_excuse():
    """Layers that start at zero (as the last of a residual branch often does) are judged on random weights."""
    model = residual()
    nn.init.zeros_(model.two.weight)
    nn.init.zeros_(model.two.bias)
    axes = nestling.trace(model, *VECTORS)
    nestling.check(model, axes, *VECTORS).raise_if_bad()
    assert_caught(model, loosened(axes, "one.bias", 0, 8), *VECTORS)
    assert not model.two.weight.any()


def test_a_model_without_values_can_be_judged():
    with torch.device("meta"):
        model = mlp(8, 6)
    axes = nestling.trace(model, *VECTORS)
    nestling.check(model, axes, *VECTORS).raise_if_bad()
    assert_caught(model, loosened(axes, "2.weight", 1, 8), *VECTORS)


def test_a_model_that_insists_on_its_precision_can_be_judged():
    """Code that casts to single precision cannot run in double, so it is judged as it is, and no less strictly."""
    model = Net(lambda net, x: net.head(net.one(x.float())), one=nn.Linear(4, 8), head=nn.Linear(8, 3))
    axes = nestling.trace(model, *VECTORS)
    nestling.check(model, axes, *VECTORS).raise_if_bad()
    assert_caught(model, loosened(axes, "head.weight", 1, 8), *VECTORS)


# The report.


def test_rows_tell_every_axis_and_every_sub_model():
    model = mlp(8, 6)
    axes = nestling.trace(model, *VECTORS).freeze("model.2", why="for a reason")
    report = nestling.check(model, axes, *VECTORS)
    by_kind = {kind: list(rows) for kind, rows in itertools.groupby(report.rows, lambda row: row.kind)}
    assert [(row.name, row.size) for row in by_kind["axis"]] == [("model.0", 8)]
    assert {row.name: row.note for row in by_kind["frozen"]} == axes.frozen
    assert {row.name for row in by_kind["sub-model"]} >= {"smallest", "half"}
    assert report.ok is all(row.ok for row in report.rows) is True
    sizes = {row.name: row.size for row in by_kind["sub-model"]}
    assert sizes["smallest"] == 1 * 5 + 6 * 2 + 3 * 7
    assert sizes["half"] == 4 * 5 + 6 * 5 + 3 * 7


def test_blocks_are_tried():
    layer = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
    model = nn.Sequential(nn.Linear(4, 8), nn.TransformerEncoder(layer, 3), nn.Linear(8, 3))
    report = nestling.check(model, nestling.trace(model, *TOKENS), *TOKENS)
    assert any("block" in row.name for row in report.rows if row.kind == "sub-model")
    report.raise_if_bad()


def test_coverage_is_the_share_that_a_cut_makes_fewer():
    model = mlp(8, 6)
    axes = nestling.trace(model, *VECTORS)
    reached = 8 * 4 + 8 + 6 * 8 + 6 + 3 * 6
    assert nestling.check(model, axes, *VECTORS).coverage == pytest.approx(reached / (reached + 3))
    held = axes.freeze("model.0")
    assert nestling.check(model, held, *VECTORS).coverage == pytest.approx((6 * 8 + 6 + 3 * 6) / (reached + 3))


def test_coverage_counts_tied_weights_once():
    embed, head = nn.Embedding(7, 8), nn.Linear(8, 7)
    head.weight = embed.weight
    model = nn.Sequential(embed, head)
    words = torch.tensor([[1, 2, 3]])
    assert nestling.check(model, nestling.trace(model, words), words).coverage == pytest.approx(56 / 63)


def test_a_good_report_raises_nothing():
    model = mlp(8)
    assert nestling.check(model, nestling.trace(model, *VECTORS), *VECTORS).raise_if_bad() is None


def test_the_sentence_names_what_is_wrong():
    model = residual()
    wrong = loosened(nestling.trace(model, *VECTORS), "two.weight", 0, 8)
    with pytest.raises(AxisError, match=r"embed|loose|two\.weight"):
        nestling.check(model, wrong, *VECTORS).raise_if_bad()


def test_an_example_that_does_not_fit_is_told():
    model = mlp(8)
    axes = nestling.trace(model, *VECTORS)
    with pytest.raises(AxisError, match="Sequential") as caught:
        nestling.check(model, axes, torch.zeros(2, 5))
    assert one_sentence(caught.value)


def test_the_map_of_another_model_is_told():
    """A map that does not belong to the model gives a bad report or a sentence, never a stack of calls."""
    axes = nestling.trace(mlp(6), *VECTORS)
    with pytest.raises(nestling.NestlingError) as caught:
        nestling.check(mlp(8), axes, *VECTORS).raise_if_bad()
    assert one_sentence(caught.value)
