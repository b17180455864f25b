"""What `trace` finds where the zoo does not look: reasons, buffers, dtypes, devices, outputs, operations one by one."""

import dataclasses
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import nestling
from nestling.axes.dims import leaves
from tests.axes.axes_prove import (
    VECTORS,
    WORDS,
    Net,
    assert_identity,
    assert_like_zeroed,
    assert_order_is_free,
    assert_trains,
    assert_whole_plan,
    some_units,
)


def beside(operation):
    """An operation on the 8 units of `a`, and an ordinary layer `c` of 6 beside it."""
    return Net(
        lambda net, x: net.b(operation(net.a(x))) + net.d(net.c(x).relu()),
        a=nn.Linear(4, 8),
        b=nn.Linear(8, 3),
        c=nn.Linear(4, 6),
        d=nn.Linear(6, 3),
    )


def prove(model, axes, *example, zeroed=True, **kwexample):
    """All that must hold of a map and of sub-models along it."""
    nestling.check(model, axes, *example, **kwexample).raise_if_bad()
    assert_whole_plan(model, axes, example, kwexample)
    assert_identity(model, axes, nestling.plan(axes, width=0.5))
    assert_trains(model, axes, nestling.plan(axes, width=0.5), example, kwexample)
    for seed in range(2):
        kept = some_units(axes, seed, least=2)
        if zeroed:
            assert_like_zeroed(model, axes, kept, example, kwexample)
        assert_order_is_free(model, axes, kept, example, kwexample)


@torch.library.custom_op("nestling_tests::sorted", mutates_args=())
def ordered(x: torch.Tensor) -> torch.Tensor:
    return x.sort(-1)[0]


ordered.register_fake(torch.empty_like)
ordered.register_autograd(lambda _, grad: grad)


def first_to_zero(h):
    h = h.clone()
    h[:, 0] = 0
    return h


# Operations that do not treat the units of a dim alike: that dim stays whole.
KEPT_WHOLE = {
    "sort": lambda h: h.sort(-1)[0],
    "topk": lambda h: h.topk(8, -1)[0],
    "custom-op": torch.ops.nestling_tests.sorted,
    "cumsum": lambda h: h.cumsum(-1),
    "logcumsumexp": lambda h: h.logcumsumexp(1),
    "cummax": lambda h: h.cummax(-1)[0],
    "flip": lambda h: h.flip(-1),
    "roll": lambda h: h.roll(1, -1),
    "roll-all": lambda h: h.roll(1),
    "argmax": lambda h: h * h.argmax(-1, keepdim=True),
    "fft": lambda h: torch.fft.fft(h).real,
    "tril": lambda h: h[:, :, None].mul(h[:, None]).tril().sum(-1),
    "positions": lambda h: h * torch.linspace(0, 1, 8),
    "counted": lambda h: h * torch.arange(h.shape[-1]),
    "every-second": lambda h: torch.where(torch.arange(8) % 2 == 0, h, -h),
    "pad": lambda h: F.pad(h, (1, 0))[:, :-1],
    "gather": lambda h: h.gather(1, torch.tensor([[7, 6, 5, 4, 3, 2, 1, 0]] * 2)),
    "index-select": lambda h: h.index_select(1, torch.arange(7, -1, -1)),
    "index": lambda h: h[:, torch.arange(7, -1, -1)],
    "take": lambda h: h.take(torch.arange(15, -1, -1).view(2, 8)),
    "as-strided": lambda h: h.contiguous().as_strided((2, 8), (8, 1)),
    "scatter": lambda h: torch.zeros_like(h).scatter(1, torch.arange(7, -1, -1).expand(2, 8), h),
    "local-response": lambda h: F.local_response_norm(h[:, :, None], 3)[:, :, 0],
    "pool-over-units": lambda h: F.avg_pool1d(h[:, None], 3, 1, 1)[:, 0],
    "conv-over-units": lambda h: F.conv1d(h[:, None], torch.ones(1, 1, 3).to(h), padding=1)[:, 0],
    "interpolate": lambda h: F.interpolate(h[:, None], scale_factor=1.0, mode="linear")[:, 0],
    "index-put": lambda h: h.index_put((torch.tensor([0]), torch.tensor([1])), h[0, 0]),
    "first-to-zero": first_to_zero,
    "identity-matrix": lambda h: h @ torch.eye(8).to(h),
    "constant-mask": lambda h: h.masked_fill(torch.tensor([True] + [False] * 7), 0),
    "constant-scale": lambda h: F.layer_norm(h, (8,), torch.arange(8.0).to(h)),
    "swapped-by-hand": lambda h: torch.stack([h[:, 1], h[:, 0], *h.unbind(1)[2:]], 1),
    "differences": lambda h: F.pad(h.diff(dim=1), (0, 1)),
}


@pytest.mark.parametrize("name", KEPT_WHOLE)
def test_what_no_cut_can_follow_is_frozen_and_says_why(name):
    model = beside(KEPT_WHOLE[name])
    axes = nestling.trace(model, *VECTORS)
    assert axes.axes == {"c": 6}
    held = {leaf.name: axes.frozen[leaf.name] for leaf in leaves(axes.dims["a.weight"][0])}
    assert all(why and "put of the model" not in why for why in held.values())  # neither its input nor its output
    prove(model, axes, *VECTORS)


def test_an_operation_nobody_knows_is_named():
    axes = nestling.trace(beside(KEPT_WHOLE["custom-op"]), *VECTORS)
    assert "nestling_tests.sorted" in axes.frozen["a"]


# Operations of which a part could be cut, or nothing: whatever is found must be right.
MAYBE = {
    "first-times-all": lambda h: h[:, :1] * h,
    "glu": lambda h: torch.cat([F.glu(h, -1)] * 2, -1),
    "step": lambda h: torch.cat([h[:, ::2], h[:, 1::2]], -1),
    "channel-shuffle": lambda h: F.channel_shuffle(h[:, :, None, None], 2)[:, :, 0, 0],
    "pixel-shuffle": lambda h: F.pixel_shuffle(h[:, :, None, None], 2).flatten(1),
    "pixel-unshuffle": lambda h: F.pixel_unshuffle(h[:, :4, None].repeat(1, 1, 2)[:, :, :, None].repeat(1, 1, 1, 2), 2)[
        :, :8, 0, 0
    ],
    "max-with-place": lambda h: h * h.max(-1, keepdim=True)[0],
    "largest-of-all": lambda h: h * h.max(),
    "median": lambda h: h - h.median(-1, keepdim=True)[0],
    "sorted-over-the-batch": lambda h: h.sort(0)[0],
    "topk-over-the-batch": lambda h: h.topk(2, 0)[0],
    "place-in-the-batch": lambda h: h + h.argmax(0),
    "cumsum-over-the-batch": lambda h: h.cumsum(0),
    "complex": lambda h: torch.view_as_complex(h.view(2, 4, 2)).mul(1j).abs().repeat(1, 2),
    "diagonal": lambda h: torch.diag_embed(h).sum(1),
    "renorm": lambda h: torch.renorm(h, 2, 0, 1.0),
    "distances": lambda h: h * torch.cdist(h, h).sum(),
    "unfold": lambda h: h.unfold(1, 2, 2).flatten(1),
    "normalised": lambda h: F.normalize(h, dim=-1),
    "expanded": lambda h: h * h.mean(-1, keepdim=True).expand_as(h),
    "squeezed-in-place": lambda h: h.unsqueeze_(1).squeeze_(1),
    "written-row-by-row": lambda h: torch.zeros_like(h).index_copy(0, torch.tensor([1, 0]), h),
}


@pytest.mark.parametrize("name", MAYBE)
def test_what_may_be_cut_in_part_is_right_at_any_rate(name):
    model = beside(MAYBE[name])
    axes = nestling.trace(model, *VECTORS)
    assert axes.axes["c"] == 6
    nestling.check(model, axes, *VECTORS).raise_if_bad()
    assert_whole_plan(model, axes, VECTORS, {})
    for seed in range(3):
        assert_order_is_free(model, axes, some_units(axes, seed, groups=False, least=2), VECTORS, {}, seed)


# Operations that treat all units alike: the dim can be cut. Those that run over the units are proved by reordering.
CUT = {
    "relu": lambda h: h.relu(),
    "written-in-place": lambda h: h.mul_(2).add_(1).relu_(),
    "where": lambda h: torch.where(h > 0, h, h * 0.1),
    "compared": lambda h: h * (h > 0),
    "double-transposed": lambda h: h.t_().t_(),
    "moved": lambda h: h.movedim(0, 1).swapaxes(0, 1),
    "there-and-back": lambda h: h.view(2, 1, -1, 1).permute(3, 2, 0, 1)[0, :, :, 0].t(),
    "to-double-and-back": lambda h: h.to(torch.float64).to(h.dtype),
    "detached": lambda h: h + h.detach(),
    "data": lambda h: h + h.data,
    "broadcast-scale": lambda h: h * torch.ones(()).to(h),
    "zeros-like": lambda h: h + torch.zeros_like(h),
    "zeros-of-its-size": lambda h: torch.maximum(h, h.new_zeros(h.shape[1])),
    "stacked": lambda h: torch.stack([h, h * 2], 1).sum(1),
    "repeated-and-summed": lambda h: h.repeat(1, 3).view(len(h), 3, -1).sum(1),
    "outer": lambda h: (h[:, :, None] * h[:, None]).sum(-1),
    "gram": lambda h: torch.linalg.multi_dot([h, h.T, h]),
    "own-norm": lambda h: h / h.norm(dim=-1, keepdim=True),
    "softmax": lambda h: h.softmax(-1),
    "amax": lambda h: h * h.amax(-1, keepdim=True),
    "standardised": lambda h: (h - h.mean(-1, keepdim=True)) / (1 + h.std(-1, keepdim=True)),
    "dot-product": lambda h: h * torch.linalg.vecdot(h, h)[:, None],
    "cosine": lambda h: h * F.cosine_similarity(h, h.flip(0), 1)[:, None],
    "by-its-own-size": lambda h: h / h.shape[1],
}
OVER_UNITS = {"own-norm", "softmax", "amax", "standardised", "cosine", "by-its-own-size"}


@pytest.mark.parametrize("name", CUT)
def test_what_treats_units_alike_is_cut(name):
    model = beside(CUT[name])
    axes = nestling.trace(model, *VECTORS)
    assert axes.axes == {"a": 8, "c": 6}
    prove(model, axes, *VECTORS, zeroed=name not in OVER_UNITS)


def test_bilinear_layers_stay_whole():
    model = Net(
        lambda net, x: net.head(net.two(net.bilinear(net.one(x), net.one(x)))),
        one=nn.Linear(4, 8),
        bilinear=nn.Bilinear(8, 8, 6),
        two=nn.Linear(6, 5),
        head=nn.Linear(5, 3),
    )
    axes = nestling.trace(model, *VECTORS)
    assert axes.axes == {"two": 5}
    assert "trilinear" in axes.frozen["one"]
    prove(model, axes, *VECTORS)


def test_inputs_outputs_kernels_and_vocabularies_are_held():
    def run(net, words, image):
        return net.head(net.words(words).sum(1) + net.conv(image).mean((2, 3)))

    model = Net(run, words=nn.Embedding(7, 8), conv=nn.Conv2d(3, 8, 3), head=nn.Linear(8, 5))
    axes = nestling.trace(model, *WORDS, torch.zeros(2, 3, 6, 6))
    assert axes.axes == {"words": 8}
    assert str(axes.dims["conv.weight"]) == "words conv.1 3 3"
    assert axes.frozen == {
        "words.0": axes.frozen["words.0"],
        "conv.1": "input of the model",
        "head": "output of the model",
    }
    assert "vocabulary" in axes.frozen["words.0"]


def test_a_table_that_is_not_saved_freezes_what_it_meets():
    model = Net(lambda net, x: net.head(net.one(x) * net.scale), one=nn.Linear(4, 8), head=nn.Linear(8, 3))
    model.register_buffer("scale", torch.rand(8), persistent=False)
    model = nn.Sequential(nn.Linear(4, 4), model)
    axes = nestling.trace(model, *VECTORS)
    assert axes.axes == {"model.0": 4}
    assert "not saved" in axes.frozen["model.1.one"]
    assert "1.scale" not in axes.dims
    prove(model, axes, *VECTORS)


def test_whole_numbers_are_not_cut():
    model = Net(
        lambda net, x: net.head(net.one(x) * net.mask), one=nn.Linear(4, 8), mask=torch.arange(8), head=nn.Linear(8, 3)
    )
    model = nn.Sequential(nn.Linear(4, 4), model)
    axes = nestling.trace(model, *VECTORS)
    assert axes.axes == {"model.0": 4}
    assert "whole numbers" in axes.frozen["model.1.one"]
    prove(model, axes, *VECTORS)


def test_a_plain_tensor_of_the_code_freezes_what_it_meets():
    model = beside(lambda h: h)
    model.plain = [torch.rand(8)]  # no buffer: no one saves or cuts it
    model.run = lambda net, x: net.b(net.a(x) * net.plain[0].to(x)) + net.d(net.c(x))
    axes = nestling.trace(model, *VECTORS)
    assert axes.axes == {"c": 6}
    assert "constant" in axes.frozen["a"]
    prove(model, axes, *VECTORS)


def test_parameters_never_used_are_kept_whole():
    model = beside(lambda h: h)
    model.idle = nn.Linear(9, 5)
    model.looked_at = nn.Parameter(torch.rand(8, 2))
    inner = model.run
    model.run = lambda net, x: (net.looked_at.t().unsqueeze(0)[:, :1], inner(net, x))[1]
    axes = nestling.trace(model, *VECTORS)
    assert axes.axes == {"a": 8, "c": 6}
    for name in ("idle.weight", "idle.bias", "looked_at"):
        reasons = [axes.frozen[word] for word in str(axes.dims[name]).split() if word in axes.table]
        assert reasons
        assert all("never used" in reason for reason in reasons)
    assert nestling.extract(axes, nestling.plan(axes, width=0.1), model.state_dict())["idle.weight"].shape == (5, 9)
    prove(model, axes, *VECTORS)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_precisions(dtype):
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3)).to(dtype)
    example = VECTORS[0].to(dtype)
    axes = nestling.trace(model, example)
    assert axes.axes == {"model.0": 8}
    small = nestling.submodel(model, axes, nestling.plan(axes, width=0.5))
    assert {tensor.dtype for tensor in small.state_dict().values()} == {dtype}
    prove(model, axes, example, zeroed=False)


def test_models_without_values():
    with torch.device("meta"):
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(128, 3))
    image = torch.zeros(2, 3, 6, 6)
    axes = nestling.trace(model, image)
    assert axes.axes == {"model.0": 8}
    assert axes == nestling.trace(model, image.to("meta"))  # the example needs no values either
    assert axes == nestling.trace(model.to_empty(device="cpu"), image)
    assert all(
        tensor.is_meta for tensor in nestling.resize(model.to("meta"), axes, nestling.plan(axes, 0.5)).parameters()
    )


@dataclasses.dataclass
class Scores:
    scores: torch.Tensor


class Pair(NamedTuple):
    scores: torch.Tensor
    others: list


class Optional(NamedTuple):
    logits: torch.Tensor | None
    scores: torch.Tensor


@dataclasses.dataclass
class Labelled:
    logits: torch.Tensor
    hidden: torch.Tensor


SHAPES = {
    "tuple": lambda y, h: (y, y * 2),
    "list": lambda y, h: [y],
    "nested": lambda y, h: {"a": [{"b": (y, None, 3)}]},
    "named-tuple": lambda y, h: Pair(y, [y]),
    "dataclass": lambda y, h: Scores(y),
    "dataclass-in-a-list": lambda y, h: [Scores(y)],
    "no-logits-this-time": lambda y, h: Optional(None, y),
    "dataclass-with-logits": Labelled,  # only the logits are held, as documented
}


@pytest.mark.parametrize("shape", SHAPES)
def test_outputs_are_never_cut(shape):
    """Whatever the model wraps its result in: the classes must not be cut away."""

    def run(net, x):
        hidden = net.one(x).relu()
        return SHAPES[shape](net.head(hidden), hidden)

    model = Net(run, one=nn.Linear(4, 8), head=nn.Linear(8, 3))
    axes = nestling.trace(model, *VECTORS)
    assert axes.axes == {"one": 8}
    assert "output" in axes.frozen["head"]


def test_all_that_is_returned_is_held():
    """A model that returns its features cannot have them cut."""
    model = Net(
        lambda net, x: (net.head(net.two(net.one(x))), {"features": net.one(x)}),
        one=nn.Linear(4, 8),
        two=nn.Linear(8, 5),
        head=nn.Linear(5, 3),
    )
    axes = nestling.trace(model, *VECTORS)
    assert axes.axes == {"two": 5}
    assert axes.frozen["one"] == "output of the model"


def test_tied_tensors_are_named_once():
    embed = nn.Embedding(7, 8)
    head = nn.Linear(8, 7, bias=False)
    head.weight = embed.weight
    axes = nestling.trace(nn.Sequential(embed, nn.Linear(8, 8), head), *WORDS)
    assert axes.tied == {"2.weight": "0.weight"}
    assert axes.dims["2.weight"] == axes.dims["0.weight"]
    assert "vocabulary" in axes.frozen[str(axes.dims["0.weight"][0])]
    assert "vocabulary" in axes.frozen[str(axes.dims["2.weight"][0])]


def test_names_with_odd_characters_do_not_collide():
    model = nn.Sequential()
    for number, name in enumerate(["a b", "a+b", "a_b", "a*b"]):
        model.add_module(name, nn.Linear(4 + number, 5 + number))
    model.add_module("end", nn.Linear(8, 3))
    axes = nestling.trace(model, *VECTORS)
    assert list(axes.axes.values()) == [5, 6, 7, 8]
    assert len(set(axes.axes)) == 4
    prove(model, axes, *VECTORS)


def test_complex_parameters_are_held_for_what_they_are():
    model = beside(lambda h: h)
    model.turn = nn.Parameter(torch.randn(8, dtype=torch.complex64))
    model.run = lambda net, x: net.b((net.a(x).to(torch.complex64) * net.turn).real) + net.d(net.c(x))
    axes = nestling.trace(model, *VECTORS)
    assert axes.axes == {"c": 6}
    assert "whole numbers" not in axes.frozen["a"]


def test_complex_parameters_are_merged_like_all_others():
    """P2: two clients that return c and c + 2 give c + 1, in every tensor."""
    model = beside(lambda h: h)
    model.turn = nn.Parameter(torch.randn(8, dtype=torch.complex64))
    model.run = lambda net, x: net.b((net.a(x).to(torch.complex64) * net.turn).real) + net.d(net.c(x))
    axes = nestling.trace(model, *VECTORS)
    plan = nestling.plan(axes)
    tally = nestling.Tally(axes, model.state_dict())
    for change in (0, 2):
        tally.add({name: tensor + change for name, tensor in model.state_dict().items()}, plan)
    torch.testing.assert_close(tally.value()["turn"], model.turn.detach() + 1)
