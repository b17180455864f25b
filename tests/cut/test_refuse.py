"""Bad input: refused in one sentence by the right error, and without a trace left behind."""

import json

import pytest
import torch
from torch import nn

import nestling
from nestling import NestlingError, Plan, Tally, cost, extract, importance, resize, submodel
from nestling.errors import BuildError, PlanError, StateError
from tests.cut.cut_cases import case, constant, copied, noisy, same, state_of


def refused(error, call, *words):
    """`call` raises exactly `error`, in one sentence that holds all `words`."""
    with pytest.raises(NestlingError) as caught:
        call()
    text = str(caught.value)
    assert type(caught.value) is error, f"{type(caught.value).__name__}: {text}"
    assert isinstance(caught.value, ValueError)
    assert "\n" not in text
    assert 20 < len(text) < 1000
    assert not text.endswith("\n")
    for word in words:
        assert word in text, text


@pytest.fixture
def it():
    return case("resnet18")


@pytest.fixture
def tally(it):
    """A merge under way: a full client, a narrow one, one that touched a part."""
    state = state_of(it)
    chosen = Tally(it.axes, state)
    plan = nestling.plan(it.axes, 0.5)
    chosen.add(noisy(state, 0), Plan(), 2.0)
    chosen.add(noisy(extract(it.axes, plan, state), 1), plan, 3.0)
    chosen.add(noisy(extract(it.axes, plan, state), 2), plan, 3.0, touched=Plan({"head": [0, 1]}))
    return chosen


class Snapshot:
    """What a tally says, to compare with what it says later."""

    def __init__(self, tally, names):
        self.value = copied(tally.value())
        self.weights = {name: tally.weights(name).clone() for name in names}
        self.clients = tally.clients

    def is_still(self, tally):
        assert same(tally.value(), self.value) is None
        assert all(torch.equal(tally.weights(name), weights) for name, weights in self.weights.items())
        assert tally.clients == self.clients


def without(state, name):
    return {key: tensor for key, tensor in state.items() if key != name}


W, B, N = "stages.0.0.body.conv1.weight", "head.bias", "stem.norm.num_batches_tracked"
DROPPED = "stages.3.1.body.conv1.weight"

UPDATES = {
    "missing": (lambda s: without(s, W), [repr(W), "lacks"]),
    "missing counter": (lambda s: without(s, N), [repr(N), "lacks"]),
    "nothing": (lambda s: {}, ["lacks"]),
    "extra": (lambda s: s | {"stem.conv.bias": torch.zeros(2)}, ["'stem.conv.bias'", "does not have"]),
    "extra with a line break": (lambda s: s | {"a\nb": torch.zeros(2)}, ["does not have"]),
    "too large": (lambda s: s | {W: torch.zeros(4, 4, 3, 3)}, [repr(W), "(4, 4, 3, 3)", "(2, 2, 3, 3)"]),
    "too few dims": (lambda s: s | {B: torch.zeros(1, 10)}, [repr(B), "(1, 10)", "(10,)"]),
    "scalar": (lambda s: s | {B: torch.zeros(())}, [repr(B), "()", "(10,)"]),
    "double": (lambda s: s | {W: s[W].double()}, [repr(W), "float64", "float32"]),
    "half": (lambda s: s | {W: s[W].half()}, [repr(W), "float16", "float32"]),
    "whole numbers": (lambda s: s | {B: torch.zeros(10, dtype=torch.long)}, [repr(B), "int64", "float32"]),
    "counter as float": (lambda s: s | {N: s[N].float()}, [repr(N), "float32", "int64"]),
    "nan": (lambda s: s | {W: s[W] * float("nan")}, [repr(W), "finite"]),
    "one inf": (lambda s: s | {B: torch.tensor([float("inf")] + [0.0] * 9)}, [repr(B), "finite"]),
    "inf and minus inf": (
        lambda s: s | {B: torch.tensor([float("inf"), float("-inf")] + [0.0] * 8)},
        [repr(B), "finite"],
    ),
    "a list": (lambda s: s | {B: [0.0] * 10}, [repr(B)]),
    "a numpy array": (lambda s: s | {B: s[B].numpy()}, [repr(B)]),
    "none": (lambda s: s | {B: None}, [repr(B)]),
    "sparse": (lambda s: s | {"head.weight": s["head.weight"].to_sparse()}, ["'head.weight'"]),
    "without values": (lambda s: s | {B: s[B].to("meta")}, [repr(B)]),
}


@pytest.mark.parametrize("what", UPDATES)
@pytest.mark.parametrize("part", [None, Plan({"head": [0, 1]})])
def test_update_that_does_not_fit(it, tally, what, part):
    change, words = UPDATES[what]
    plan = nestling.plan(it.axes, 0.5)
    update = change(noisy(extract(it.axes, plan, state_of(it)), 5))
    before = Snapshot(tally, it.axes.dims)
    refused(StateError, lambda: tally.add(update, plan, 1.0, part), *words)
    before.is_still(tally)


@pytest.mark.parametrize("what", ["one inf", "inf and minus inf", "nan"])
def test_large_but_finite_values_are_no_false_alarm(it, tally, what):
    """The sum of these overflows, the values do not."""
    update = constant(state_of(it), 3e38)
    tally.add(update, Plan())
    update = UPDATES[what][0](update)
    refused(StateError, lambda: tally.add(update, Plan()), "finite")


@pytest.mark.parametrize(
    "weight",
    [0, 0.0, -1, -1e-9, float("nan"), float("inf"), float("-inf"), "1", None, [1], 1j, True, 10**400],
    ids=lambda weight: repr(weight)[:8],
)
def test_weight(it, tally, weight):
    before = Snapshot(tally, it.axes.dims)
    refused(StateError, lambda: tally.add(state_of(it), Plan(), weight), "weight", "above zero")
    before.is_still(tally)


def test_tensors_of_dropped_blocks(it, tally):
    plan = Plan(blocks=[block for block in it.axes.blocks if block != "stages.3.1"])
    update = noisy(extract(it.axes, plan, state_of(it)), 3)
    before = Snapshot(tally, it.axes.dims)
    refused(
        StateError, lambda: tally.add(update | {DROPPED: state_of(it)[DROPPED]}, plan), repr(DROPPED), "its plan drops"
    )
    before.is_still(tally)


TOUCHED = {
    "outside the plan": (Plan({"stem.conv": [1, 3]}), ["'stem.conv'", "touched"]),
    "outside the window": (Plan({"stages.1.0.body.conv2": [0, 1, 2, 3, 4]}), ["'stages.1.0.body.conv2'", "touched"]),
    "out of range": (Plan({"head": [10]}), ["'head'", "10", "9"]),
    "unknown": (Plan({"heads": [0]}), ["'heads'", "'head'"]),
    "unknown block": (Plan(blocks=["stages.9.9"]), ["block"]),
}


@pytest.mark.parametrize("what", TOUCHED)
def test_touched(it, tally, what):
    touched, words = TOUCHED[what]
    plan = nestling.plan(it.axes, 0.5)
    before = Snapshot(tally, it.axes.dims)
    update = noisy(extract(it.axes, plan, state_of(it)), 3)
    refused(PlanError, lambda: tally.add(update, plan, touched=touched), *words)
    before.is_still(tally)


PLANS = {
    "unknown axis": (Plan({"stem.convv": [0]}), ["'stem.convv'", "'stem.conv'"]),
    "unknown block": (Plan(blocks=["stages.0.0", "stages.0.7"]), ["'stages.0.7'"]),
    "frozen axis": (Plan({"head": [0, 1]}), ["'head'", "output of the model"]),
    "out of range": (Plan({"stem.conv": [0, 4]}), ["'stem.conv'", "4", "0 to 3"]),
    "far out of range": (Plan({"stem.conv": range(10**12)}), ["'stem.conv'", "0 to 3"]),
}


@pytest.mark.parametrize("what", PLANS)
def test_plan_that_does_not_fit_the_model(it, tally, what):
    plan, words = PLANS[what]
    state = state_of(it)
    before = Snapshot(tally, it.axes.dims)
    for call in (
        lambda: plan.fit(it.axes),
        lambda: extract(it.axes, plan, state),
        lambda: submodel(it.model, it.axes, plan),
        lambda: resize(it.model, it.axes, plan),
        lambda: cost(it.model, it.axes, plan, it.example),
        lambda: tally.add(state, plan),
    ):
        refused(PlanError, call, *words)
    before.is_still(tally)


def test_a_frozen_axis_may_be_named_whole(it):
    Plan({"head": range(10)}).fit(it.axes)
    assert same(extract(it.axes, Plan({"head": range(10)}), state_of(it)), state_of(it)) is None


INDICES = {
    "empty": ([], ["at least one"]),
    "empty range": (range(3, 3), ["at least one"]),
    "empty tensor": (torch.tensor([], dtype=torch.long), ["at least one"]),
    "twice": ([1, 2, 1], ["1", "twice"]),
    "negative": ([-1, 0], ["-1"]),
    "negative range": (range(-2, 2), ["-2"]),
    "float": ([0, 1.0], ["whole numbers", "1.0"]),
    "float tensor": (torch.tensor([0.0, 1.0]), ["whole numbers"]),
    "float tensors in a list": ([torch.tensor(1.5)], ["whole numbers"]),
    "bool": ([True, False], ["whole numbers", "True"]),
    "bool mask": (torch.tensor([True, False]), ["whole numbers"]),
    "bool tensors in a list": ([torch.tensor(True)], ["whole numbers"]),
    "words": (["0"], ["whole numbers"]),
    "a word": ("01", ["whole numbers"]),
    "nested": ([[0, 1]], ["whole numbers"]),
    "matrix": (torch.zeros(2, 2, dtype=torch.long), ["whole numbers"]),
    "none inside": ([None], ["whole numbers"]),
}


@pytest.mark.parametrize("what", INDICES)
def test_indices(what):
    kept, words = INDICES[what]
    refused(PlanError, lambda: Plan({"conv1": kept}), "'conv1'", *words)


@pytest.mark.parametrize(
    "key",
    [
        "../secret",
        "/etc/passwd",
        "a/b",
        "a\\b",
        "..",
        ".hidden",
        "-rf",
        "a b",
        "a\n",
        "a\nb",
        "é",
        "x" * 101,
        "a\0b",
        "C:x",
    ],
)
def test_keys_name_files(key):
    refused(PlanError, lambda: Plan(key=key), "letters, digits")
    refused(PlanError, lambda: Plan.from_json(json.dumps({"axes": {}, "key": key})), "letters, digits")


@pytest.mark.parametrize("key", ["a", "w0.5", "level-e", "x" * 100, "a_b+c.d", "0"])
def test_keys_that_are_fine(key):
    assert Plan(key=key).key == key


def test_blocks_are_a_list_of_words():
    refused(PlanError, lambda: Plan(blocks="stages.0.0"), "'stages.0.0'", "list")


GARBAGE = {
    "nothing": "",
    "space": "  ",
    "not json": "{axes}",
    "half": '{"axes":{"a":[[0,',
    "list": "[]",
    "null": "null",
    "number": "3",
    "no axes": "{}",
    "axes as list": '{"axes":[]}',
    "indices": '{"axes":{"a":[0,1,2]}}',
    "empty runs": '{"axes":{"a":[]}}',
    "empty run": '{"axes":{"a":[[1,1]]}}',
    "backwards": '{"axes":{"a":[[3,1]]}}',
    "falling": '{"axes":{"a":[[4,5],[0,1]]}}',
    "overlap": '{"axes":{"a":[[0,3],[2,5]]}}',
    "touching": '{"axes":{"a":[[0,2],[2,5]]}}',
    "twice": '{"axes":{"a":[[0,2],[0,2]]}}',
    "three ends": '{"axes":{"a":[[0,1,2]]}}',
    "one end": '{"axes":{"a":[[0]]}}',
    "negative": '{"axes":{"a":[[-1,2]]}}',
    "float": '{"axes":{"a":[[0,1.5]]}}',
    "bool": '{"axes":{"a":[[false,true]]}}',
    "words": '{"axes":{"a":[["0","1"]]}}',
    "nan": '{"axes":{"a":[[0,NaN]]}}',
    "blocks as word": '{"axes":{},"blocks":"a"}',
    "blocks of numbers": '{"axes":{},"blocks":[1]}',
    "key of numbers": '{"axes":{},"key":3}',
    "unknown field": '{"axes":{},"code":"import os"}',
    "unknown field with a line break": '{"axes":{},"a\\nb":1}',
    "deep": "[" * 100_000,
    "deep axes": '{"axes":' * 10_000,
    "bad utf-8": b"\xff\xfe{}",
    "half a character": "\ud800",
    "rest": '{"axes":{}} and more',
}


@pytest.mark.parametrize("what", GARBAGE)
def test_plan_json(what):
    refused(PlanError, lambda: Plan.from_json(GARBAGE[what]))


@pytest.mark.parametrize("stop", [2**31, 2**40, 2**63, 10**40])
def test_a_giant_run_in_json_costs_nothing_until_it_is_refused(it, stop):
    plan = Plan.from_json(json.dumps({"axes": {"stem.conv": [[0, stop]]}}))
    refused(PlanError, lambda: plan.fit(it.axes), "'stem.conv'", "0 to 3")
    assert len(repr(plan)) < 200


WIDTHS = [0, 0.0, -0.5, 1.0001, 2, float("nan"), float("inf"), "0.5", None, [0.5], 0.5j]


@pytest.mark.parametrize("width", WIDTHS)
def test_width(it, width):
    for chosen in (width, {"stem.conv": width}, {"*": width}):
        refused(
            PlanError,
            lambda width=chosen: nestling.plan(it.axes, width),
            "width",
            "above 0 and at most 1",
            repr(width),
        )


@pytest.mark.parametrize("pattern", ["stem.cnv", "stages.9.*", "head"])
def test_width_of_an_axis_that_cannot_be_cut(it, pattern):
    """A word that matches nothing is a slip of the pen, and a whole model on a small device its result."""
    refused(PlanError, lambda: nestling.plan(it.axes, {pattern: 0.5}), repr(pattern))


@pytest.mark.parametrize("pick", ["prefx", "", "Rolling"])
def test_pick(it, pick):
    refused(PlanError, lambda: nestling.plan(it.axes, 0.5, pick), "pick")


def test_picker_that_picks_what_is_not_there(it):
    refused(PlanError, lambda: nestling.plan(it.axes, 0.5, lambda name, size, count: [size]), "has units 0 to")
    refused(PlanError, lambda: nestling.plan(it.axes, 0.5, lambda name, size, count: []), "at least one")
    refused(PlanError, lambda: nestling.plan(it.axes, 0.5, lambda name, size, count: [0, 0]), "twice")
    refused(PlanError, lambda: nestling.plan(it.axes, 0.5, "rolling", round=1.5), "whole numbers")


@pytest.mark.parametrize("blocks", [["stages.7.*"], ["stages.0.0", "nope"], "nope", [""]])
def test_blocks_that_match_nothing(it, blocks):
    refused(PlanError, lambda: nestling.plan(it.axes, blocks=blocks), "block")


def test_blocks_of_a_model_without(it):
    refused(PlanError, lambda: nestling.plan(case("mlp").axes, blocks=["a"]), "'a'", "none")


def scores_of(axes, **changes):
    scores = {name: torch.arange(size).double() for name, size in axes.axes.items()}
    return scores | changes


SCORES = {
    "missing": lambda s: {k: v for k, v in s.items() if k != "stem.conv"},
    "too short": lambda s: s | {"stem.conv": torch.zeros(3)},
    "matrix": lambda s: s | {"stem.conv": torch.zeros(4, 1)},
    "not a number": lambda s: s | {"stem.conv": torch.tensor([0.0, float("nan"), 1, 2])},
}


@pytest.mark.parametrize("what", SCORES)
def test_scores(it, what):
    scores = SCORES[what](scores_of(it.axes))
    refused(PlanError, lambda: nestling.plan(it.axes, 0.5, "importance", scores=scores), "'stem.conv'")


def test_scores_and_mask_left_out(it):
    refused(PlanError, lambda: nestling.plan(it.axes, 0.5, "importance"), "scores")
    refused(PlanError, lambda: nestling.plan(it.axes, pick="mask"), "mask")


MASKS = {
    "too long": ("stem.conv", torch.ones(5, dtype=torch.bool), ["'stem.conv'", "(4,)", "(5,)"]),
    "numbers": ("stem.conv", torch.tensor([0.5, -1, 0, 1]), ["'stem.conv'", "boolean"]),
    "zeros and ones": ("stem.conv", torch.tensor([0, 1, 1, 0]), ["'stem.conv'", "boolean"]),
    "nothing kept": ("stem.conv", torch.zeros(4, dtype=torch.bool), ["'stem.conv'", "at least one"]),
    "unknown axis": ("stem.cnv", torch.ones(4, dtype=torch.bool), ["'stem.cnv'"]),
    "frozen axis": ("head", torch.tensor([True] * 5 + [False] * 5), ["'head'"]),
}


@pytest.mark.parametrize("what", MASKS)
def test_masks(it, what):
    name, mask, words = MASKS[what]
    refused(PlanError, lambda: nestling.plan(it.axes, pick="mask", mask={name: mask}), *words)


WHOLE = {
    "missing": (lambda s: without(s, W), [repr(W)]),
    "extra": (lambda s: s | {"nope": torch.zeros(1)}, ["'nope'"]),
    "mis-shaped": (lambda s: s | {W: s[W][:2]}, [repr(W), "(2, 4, 3, 3)", "(4, 4, 3, 3)"]),
}


@pytest.mark.parametrize("what", WHOLE)
def test_state_of_the_whole_model(it, tally, what):
    change, words = WHOLE[what]
    state = change(state_of(it))
    before = Snapshot(tally, it.axes.dims)
    refused(StateError, lambda: extract(it.axes, Plan(), state), *words)
    refused(StateError, lambda: Tally(it.axes, state), *words)
    refused(StateError, lambda: tally.restart(state), *words)
    before.is_still(tally)


def test_importance_of_a_state_that_does_not_fit(it):
    state = state_of(it)
    refused(StateError, lambda: importance(it.axes, state | {W: state[W][:2]}), repr(W))


def test_a_map_of_another_model(it):
    other = case("mlp")
    refused(StateError, lambda: submodel(other.model, it.axes, Plan()))
    refused(StateError, lambda: extract(it.axes, Plan(), other.model.state_dict()))


def test_weights_of_a_tensor_that_is_not_there(tally):
    refused(StateError, lambda: tally.weights("head.bia"), "'head.bia'", "'head.bias'")


def test_index_of_an_axis_that_the_plan_does_not_name():
    refused(PlanError, lambda: Plan({"conv1": [0]}).index("conv2"), "'conv2'", "'conv1'")


def test_build_that_makes_the_wrong_module(it):
    plan = nestling.plan(it.axes, 0.5)
    refused(BuildError, lambda: submodel(it.model, it.axes, plan, build=lambda _: nn.Linear(2, 2)), "build(plan)")


@pytest.mark.parametrize("batch", [0, -1])
def test_cost_of_a_batch_that_is_none(batch):
    it = case("mlp")
    refused(BuildError, lambda: cost(it.model, it.axes, Plan(), it.example, batch=batch), "batch")


def test_cost_of_an_example_that_does_not_fit():
    it = case("mlp")
    refused(BuildError, lambda: cost(it.model, it.axes, Plan(), torch.zeros(2, 3)), "example")
    refused(BuildError, lambda: cost(it.model, it.axes, Plan()), "example")
