"""Methods by name: what can be asked for, what is refused, and that methods are values."""

import pickle
from dataclasses import fields, replace
from functools import partial

import pytest

from nestling.errors import MethodError, NestlingError
from nestling.methods import METHODS, make, names
from nestling.methods.parts.scaler import Scaler
from nestling.methods.registry import about, described_options, options
from tests.harness import plan_of, setup_of, submodel_plan_of
from tests.methods.method_cases import net_of

CHOICES = [
    *((name, {"nefl": {"variant": "W"}}.get(name, {})) for name in names() if name != "depthfl"),  # which needs blocks
    ("fedrolex", {"step": 3, "weighting": "width", "scaler": False}),
    ("fjord", {"widths": [0.25, 0.5], "distill": False}),
    ("lg-fedavg", {"layers": 1, "masked": True}),
    ("fedprox", {"mu": 1}),
]


def refused(call, *words):
    with pytest.raises(NestlingError) as caught:
        call()
    text = str(caught.value)
    assert "\n" not in text
    for word in words:
        assert word in text, text
    return caught.value


@pytest.mark.parametrize("name", names())
def test_every_method_has_its_name_a_line_about_it_and_options_with_defaults(name):
    assert make(name).name == name
    assert make(name, {}).name == name
    assert about(name).endswith(".")
    assert ":" in about(name)
    given = {option.partition("=")[0] for option in options(name)}
    assert all("inspect" not in option for option in options(name))  # every option has a default
    assert set(METHODS[name].__annotations__) - given <= {"options", "return"}  # `options` are those of another method


def has_scaler(method):
    return any(isinstance(part, Scaler) for part in method.parts)


def test_the_papers_choices():
    by_name = {name: make(name) for name in names()}
    assert {name for name, method in by_name.items() if has_scaler(method)} == {"heterofl", "fedrolex", "fed-dropout"}
    assert {name for name, method in by_name.items() if method.overriding("output_mask")} == {
        "heterofl",
        "fedrolex",
        "fed-dropout",
    }
    assert {name for name, method in by_name.items() if method.weighting == "samples"} == {
        "fedavg",
        "fedprox",
        "lg-fedavg",
        "fedpruned",
        "fjord",
        "fedmorph",
        "fedmorphprox",
        "feddf",
    }
    assert {name: method.proximal for name, method in by_name.items() if method.proximal} == {
        "fedprox": 0.01,
        "fedmorphprox": 0.01,
    }


@pytest.mark.parametrize(
    ("name", "words"),
    [("heterfl", ["'heterofl'"]), ("FedAvg", ["'fedavg'"]), ("", ["'fedavg'", "'fjord'"]), ("zzz", ["'standalone'"])],
)
def test_unknown_names(name, words):
    assert type(refused(lambda: make(name), f"there is no method {name!r}", *words)) is MethodError


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        ("fedavg", {"mask": True}, ["fedavg has no option 'mask'", "'masked'"]),
        ("fedrolex", {"stepp": 1}, ["'stepp'", "'step'"]),
        ("fjord", {"scaler": True}, ["'scaler'", "'widths'"]),
        ("fedrolex", {"step": 1.5}, ["'step'", "1.5"]),
        ("fedrolex", {"step": "1"}, ["'step'", "'1'"]),
        ("fedrolex", {"step": True}, ["'step'", "True"]),
        ("fedrolex", {"step": None}, ["'step'", "None"]),
        ("fedrolex", {"weighting": "size"}, ["'weighting'", "'size'"]),
        ("heterofl", {"scaler": 1}, ["'scaler'", "1"]),
        ("heterofl", {"masked": "yes"}, ["'masked'", "'yes'"]),
        ("fjord", {"widths": 0.5}, ["'widths'", "0.5"]),
        ("fjord", {"widths": ["a"]}, ["'widths'", "'a'"]),
        ("fedprox", {"mu": "0.1"}, ["'mu'", "'0.1'"]),
        ("fedprox", {"mu": True}, ["'mu'", "True"]),
        ("lg-fedavg", {"layers": 2.5}, ["'layers'", "2.5"]),
    ],
)
def test_unknown_options_and_wrong_types(name, given, words):
    assert type(refused(lambda: make(name, given), *words)) is MethodError


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        ("fedrolex", {"step": -1}, ["-1", "0 or more"]),
        ("lg-fedavg", {"layers": 0}, ["at least 1", "0"]),
        ("lg-fedavg", {"layers": -3}, ["at least 1", "-3"]),
        ("fjord", {"widths": [0.5, 0.0]}, ["above 0", "0.0"]),
        ("fjord", {"widths": [1.5]}, ["at most 1", "1.5"]),
        ("fjord", {"widths": [float("nan")]}, ["above 0", "nan"]),
    ],
)
def test_values_that_cannot_be(name, given, words):
    refused(lambda: make(name, given), *words)


@pytest.mark.parametrize(
    ("name", "given"), [("fedrolex", {"step": -1}), ("lg-fedavg", {"layers": 0}), ("fjord", {"widths": [0.0]})]
)
def test_values_that_cannot_be_are_errors_of_the_method(name, given):
    assert type(refused(lambda: make(name, given))) is MethodError


@pytest.mark.parametrize("mu", [-1.0, float("nan"), float("inf")])
def test_a_proximal_weight_that_cannot_be(mu):
    refused(lambda: make("fedprox", {"mu": mu}), repr(mu))


def test_numbers_without_a_point_are_numbers():
    assert make("fedprox", {"mu": 1}).proximal == 1.0
    assert make("fjord", {"widths": [1]}).parts[-1].widths == (1.0,)


# ---- methods are values


def values_of(part):
    """What a part is made of; a partial function is not equal to its copy, but all that it holds is."""
    values = [getattr(part, field.name) for field in fields(part)]
    return type(part), [(it.func, it.args, it.keywords) if isinstance(it, partial) else it for it in values]


@pytest.mark.parametrize(("name", "given"), CHOICES)
def test_methods_travel_and_do_the_same_elsewhere(name, given):
    method = make(name, given)
    other = pickle.loads(pickle.dumps(method))
    axes = net_of("cnn")[1]
    for round in (1, 5):
        assert plan_of(other, axes, 0.3, round) == plan_of(method, axes, 0.3, round)
    assert submodel_plan_of(other, axes, 0.3) == submodel_plan_of(method, axes, 0.3)
    setups = [setup_of(None, axes, one) for one in (method, other)]
    assert setups[0].owners == setups[1].owners
    assert (other.name, other.weighting) == (method.name, method.weighting)
    assert [values_of(part) for part in other.chain] == [values_of(part) for part in method.chain]


def test_methods_that_differ_are_not_equal():
    hetero = make("heterofl")
    bare = replace(hetero, parts=[part for part in hetero.parts if not isinstance(part, Scaler)])
    methods = [*(make(name, given) for name, given in CHOICES), bare]
    assert all(one != two for k, one in enumerate(methods) for two in methods[:k])


@pytest.mark.parametrize("name", METHODS)
def test_every_option_has_a_meaning(name):
    described = described_options(name)
    assert [f"{option['name']}={option['default']!r}" for option in described] == options(name)
    for option in described:
        assert option["meaning"].endswith("."), option
        assert option["accepted"], option
