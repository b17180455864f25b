"""Axes written by hand: the grammar, what a declaration reaches, and what is refused or caught."""

import pytest
import torch
from torch import nn

import nestling
from nestling.axes.dims import leaves
from nestling.errors import AxisError, PlanError
from tests.axes.axes_prove import TOKENS, VECTORS, Net, assert_identity, assert_like_zeroed, one_sentence
from tests.axes.axes_zoo_transformers import apart, attention


def mlp(*widths):
    layers = []
    for before, width in zip((4, *widths), (*widths, 2), strict=True):
        layers += [nn.Linear(before, width), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def traced(model, *example):
    return nestling.trace(model, *(example or VECTORS))


def shown(axes):
    return {name: str(dims) for name, dims in axes.dims.items()}


def consistent(axes):
    """A name has one size, everywhere, and the map survives JSON."""
    for name, dims in axes.dims.items():
        for dim in dims:
            for leaf in leaves(dim):
                assert leaf.size == axes.table[leaf.name].size, (name, leaf)
    assert nestling.AxisMap.from_json(axes.to_json()) == axes


@torch.library.custom_op("nestling_tests::softer", mutates_args=())
def softer(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.silu(x)


softer.register_fake(torch.empty_like)
softer.register_autograd(lambda _, grad: grad)


def unknown():
    """An operation that no rule knows, although it treats all units alike, beside a layer that all is known of."""
    return Net(
        lambda net, x: net.b(torch.ops.nestling_tests.softer(net.a(x))) + net.d(net.c(x).relu()),
        a=nn.Linear(4, 8),
        b=nn.Linear(8, 3),
        c=nn.Linear(4, 6),
        d=nn.Linear(6, 3),
    )


def test_a_new_name_reaches_every_tensor_of_its_axis():
    axes = traced(mlp(8, 6)).declare({"0.bias": "hidden"})
    assert axes.axes == {"hidden": 8, "model.2": 6}
    assert axes.uses("hidden") == ["0.weight", "0.bias", "2.weight"]
    consistent(axes)


def test_a_split_reaches_every_tensor_of_its_axis():
    axes = traced(mlp(8)).declare({"0.bias": "(two four)"}, sizes={"two": 2})
    assert axes.axes == {"two": 2, "four": 4}
    assert shown(axes)["0.weight"].startswith("(two four)")
    assert shown(axes)["2.weight"].endswith("(two four)")
    assert axes.groups == {"two"}
    consistent(axes)


def test_a_sum_reaches_every_tensor_of_its_axis():
    axes = traced(mlp(8)).declare({"2.weight": "2 (left + right)"}, sizes={"left": 3})
    assert axes.axes == {"left": 3, "right": 5}
    assert shown(axes)["0.bias"] == "(left + right)"
    consistent(axes)


def test_names_are_one_axis_within_a_call():
    model = mlp(8, 8)
    axes = traced(model).declare({"0.bias": "both", "2.bias": "both"})
    assert axes.axes == {"both": 8}
    assert shown(axes)["2.weight"] == "both both"
    consistent(axes)


def test_the_name_of_another_axis_couples_with_it():
    axes = traced(mlp(8, 8)).declare({"0.bias": "model.2"})
    assert axes.axes == {"model.2": 8}
    assert shown(axes)["2.weight"] == "model.2 model.2"
    consistent(axes)


def test_the_name_of_another_axis_of_another_size_is_refused():
    with pytest.raises(AxisError) as caught:
        consistent(traced(mlp(8, 6)).declare({"0.bias": "model.2"}))
    assert one_sentence(caught.value)


@pytest.mark.parametrize("pattern", ["(half 2)", "(2 half)", "(half + 4)", "(4 + half)"])
def test_a_part_that_stays_whole_takes_no_other_axis_name(pattern):
    """Parts without a name of their own are numbered, and must not take the name of an axis that exists."""
    axes = traced(mlp(8)).declare({"0.bias": pattern})
    assert axes.axes == {"half": 4}
    assert axes.dims["0.weight"].shape == (8, 4)
    consistent(axes)


def test_stars_stand_for_what_the_pattern_matched():
    model = nn.Sequential()
    for name in ("one", "two"):
        model.add_module(name, attention(apart)())
    model = Net(lambda net, x: net.one(x) + net.two(x), one=model.one, two=model.two)
    axes = traced(model, *TOKENS).declare(
        {"*.q.weight": "(*.hands *.fingers) *.stream"}, sizes={f"{name}.hands": 2 for name in ("one", "two")}
    )
    assert set(axes.axes) == {f"{name}.{what}" for name in ("one", "two") for what in ("hands", "fingers", "stream")}
    assert shown(axes)["two.out.weight"] == "two.stream (two.hands two.fingers)"
    consistent(axes)


def test_one_pattern_may_speak_for_many_tensors():
    axes = traced(mlp(8, 8)).declare({"[02].bias": "wide"})
    assert axes.axes == {"wide": 8}
    consistent(axes)


def test_a_tensor_is_found_by_its_own_name_whatever_it_holds():
    """Brackets in the name of a module are no shell pattern when the name is written out."""
    model = nn.Sequential()
    model.add_module("layer[0]", nn.Linear(4, 8))
    model.add_module("end", nn.Linear(8, 3))
    assert traced(model).declare({"layer[0].bias": "wide"}).axes == {"wide": 8}


def test_a_number_freezes():
    axes = traced(mlp(8, 6)).declare({"0.bias": "8"})
    assert axes.axes == {"model.2": 6}
    consistent(axes)
    with pytest.raises(PlanError):
        nestling.Plan({"model.0": [0]}).fit(axes)


def test_a_number_says_that_it_was_declared():
    assert "declared" in traced(mlp(8, 6)).declare({"0.bias": "8"}).frozen["model.0"]


def test_the_reasons_of_others_stay():
    before = traced(mlp(8, 6))
    after = before.declare({"0.weight": "hidden 4"})
    assert after.frozen["model.4"] == before.frozen["model.4"] == "output of the model"
    assert after.frozen["model.0.1"] != "kernel"  # an input is no kernel


def test_the_map_itself_does_not_change():
    axes = traced(mlp(8, 6))
    text = axes.to_json()
    axes.declare({"0.bias": "(a b)"}, sizes={"a": 2})
    axes.freeze("*")
    assert axes.to_json() == text


# Proof: what is declared rightly is proved by check, what is declared wrongly is not.

RIGHT = {
    "renamed": (mlp(8, 6), VECTORS, {"0.bias": "hidden"}, {}),
    "split in two": (mlp(8, 6), VECTORS, {"0.bias": "(two four)"}, {"two": 2}),
    "in segments": (mlp(8, 6), VECTORS, {"0.bias": "(left + right)"}, {"left": 3}),
    "by halves": (mlp(8, 6), VECTORS, {"0.bias": "(2 half)"}, {}),
    "coupled": (mlp(8, 8), VECTORS, {"0.bias": "both", "2.bias": "both"}, {}),
    "frozen": (mlp(8, 6), VECTORS, {"0.bias": "8"}, {}),
    "thawed": (unknown(), VECTORS, {"a.bias": "free", "a.weight": "free 4", "b.weight": "3 free"}, {}),
    "thawed in few words": (unknown(), VECTORS, {"a.bias": "free", "b.weight": "3 free"}, {}),
    "said again": (attention(apart)(), TOKENS, {"q.weight": "(q.heads q.head_dim) embed"}, {"q.heads": 2}),
    "heads renamed": (attention(apart)(), TOKENS, {"q.weight": "(hands fingers) stream"}, {"hands": 2}),
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_declared_rightly_is_proved(name):
    model, example, patterns, sizes = RIGHT[name]
    axes = traced(model, *example).declare(patterns, sizes)
    consistent(axes)
    nestling.check(model, axes, *example).raise_if_bad()


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_declared_rightly_cuts_rightly(name):
    model, example, patterns, sizes = RIGHT[name]
    axes = traced(model, *example).declare(patterns, sizes)
    plan = nestling.plan(axes, width=0.5)
    assert_identity(model, axes, plan)
    assert_like_zeroed(model, axes, {axis: plan.index(axis).tolist() for axis in plan.runs}, example, {})


def test_a_thawed_axis_is_cut():
    model = unknown()
    axes = traced(model)
    assert axes.axes == {"c": 6}
    thawed = axes.declare({"a.weight": "free 4", "a.bias": "free", "b.weight": "3 free"})
    assert thawed.axes == {"free": 8, "c": 6}
    small = nestling.submodel(model, thawed, nestling.plan(thawed, width=0.5))
    assert small.a.weight.shape == (4, 4)
    assert small.b.weight.shape == (3, 4)


def test_thawing_one_tensor_of_a_frozen_product_thaws_it_everywhere():
    """Every tensor that shares the axis follows, also where all the factors were frozen."""
    model = attention(apart)()
    held = traced(model, *TOKENS).freeze("*heads", "*head_dim")
    thawed = held.declare({"q.weight": "(hands fingers) embed"}, sizes={"hands": 2})
    assert shown(thawed)["out.weight"] == "embed (hands fingers)"
    assert thawed.uses("hands") == traced(model, *TOKENS).uses("q.heads")


def test_what_was_not_spoken_of_stays_as_it_was():
    held = traced(attention(apart)(), *TOKENS).freeze("*heads", "*head_dim")
    after = held.declare({"head.bias": "3"})
    assert {name: text for name, text in shown(after).items() if not name.startswith("head")} == {
        name: text for name, text in shown(held).items() if not name.startswith("head")
    }


WRONG = {
    "uncoupled": (unknown(), VECTORS, {"a.weight": "free 4", "a.bias": "free", "b.weight": "3 other"}),
    "classes": (mlp(8), VECTORS, {"2.bias": "classes"}),
    "inputs": (mlp(8), VECTORS, {"0.weight": "hidden pixels"}),
    "words": (
        nn.Sequential(nn.Embedding(7, 8), nn.Linear(8, 3)),
        (torch.tensor([[1, 5], [2, 3]]),),
        {"0.weight": "words 8"},
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_declared_wrongly_is_caught(name):
    model, example, patterns = WRONG[name]
    report = nestling.check(model, traced(model, *example).declare(patterns), *example)
    assert not report.ok
    with pytest.raises(AxisError):
        report.raise_if_bad()


REFUSED = {
    "unknown tensor": ({"9.bias": "hidden"}, {}, "9.bias"),
    "unknown pattern": ({"*.scale": "hidden"}, {}, "*.scale"),
    "too many dims": ({"0.bias": "hidden 4"}, {}, "0.bias"),
    "too few dims": ({"0.weight": "hidden"}, {}, "0.weight"),
    "wrong number": ({"0.bias": "7"}, {}, "0.bias"),
    "wrong product": ({"0.bias": "(3 part)"}, {}, "0.bias"),
    "wrong sum": ({"0.bias": "(9 + part)"}, {}, "0.bias"),
    "two new names": ({"0.bias": "(one two)"}, {}, "sizes"),
    "size that does not fit": ({"0.bias": "hidden"}, {"hidden": 5}, "0.bias"),
    "one name of two sizes": ({"0.bias": "same", "2.bias": "same"}, {}, "same"),
    "not readable": ({"0.bias": "a * b"}, {}, "a * b"),
    "not closed": ({"0.bias": "(a b"}, {}, "(a b"),
    "star without a star": ({"0.bias": "*.wide"}, {}, "*.wide"),
    "against a known split": ({"0.bias": "(2 half)", "2.weight": "model.2 (3 + five)"}, {}, "2.weight"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused_in_one_sentence(name):
    patterns, sizes, quoted = REFUSED[name]
    with pytest.raises(AxisError) as caught:
        traced(mlp(8, 6)).declare(patterns, sizes)
    assert one_sentence(caught.value)
    assert quoted in str(caught.value)


# Freezing by hand.


def test_freezing_by_pattern():
    axes = traced(mlp(8, 6, 5))
    assert axes.freeze("model.2").axes == {"model.0": 8, "model.4": 5}
    assert axes.freeze("model.[02]", why="too small").frozen["model.0"] == "too small"
    assert axes.freeze("*").axes == {}
    assert axes.freeze("model.0", "model.4").axes == {"model.2": 6}


def test_the_first_reason_is_kept():
    axes = traced(mlp(8)).freeze("model.0", why="one").freeze("*", why="two")
    assert axes.frozen["model.0"] == "one"
    assert axes.frozen["model.2"] == "output of the model"


def test_freezing_without_a_reason_still_freezes():
    assert traced(mlp(8, 6)).freeze("model.0", why="").axes == {"model.2": 6}


def test_what_is_frozen_is_kept_whole():
    model = mlp(8, 6)
    axes = traced(model).freeze("model.0")
    assert nestling.submodel(model, axes, nestling.plan(axes, width=0.5))[0].weight.shape == (8, 4)
    with pytest.raises(PlanError, match="frozen by hand"):
        nestling.extract(axes, nestling.Plan({"model.0": [0]}), model.state_dict())
    nestling.check(model, axes, *VECTORS).raise_if_bad()


@pytest.mark.parametrize("do", [lambda axes: axes.freeze("modle.0"), lambda axes: axes.uses("modle.0")])
def test_an_axis_that_does_not_exist_is_refused_with_a_guess(do):
    with pytest.raises(AxisError, match=r"did you mean 'model\.") as caught:
        do(traced(mlp(8)))
    assert one_sentence(caught.value)
