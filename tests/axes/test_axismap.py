"""An axis map as JSON: the same after the journey, and nothing else is let in."""

import json

import pytest
import torch
from torch import nn

import nestling
from nestling.errors import AxisError
from nestling.nets import build, example, names
from tests.axes.axes_prove import one_sentence
from tests.quick import mostly_slow

NET = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def traced(name):
    with torch.device("meta"):
        model = build(name)
    return nestling.trace(model, *example(name, batch=1))


def good():
    return json.loads(nestling.trace(NET, torch.zeros(1, 4)).to_json())


@pytest.mark.parametrize("name", mostly_slow(names(), quick=5))
def test_every_net_survives_the_journey(name):
    axes = traced(name)
    text = axes.to_json()
    back = nestling.AxisMap.from_json(text)
    assert back == axes
    assert back.to_json() == text
    assert nestling.AxisMap.from_json(text.encode()) == axes
    assert (back.axes, back.frozen, back.groups) == (axes.axes, axes.frozen, axes.groups)


def test_ties_and_blocks_survive():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(5, 8)
            self.layers = nn.Sequential(*(nn.TransformerEncoderLayer(8, 2, 8) for _ in range(2)))
            self.head = nn.Linear(8, 5, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, words):
            return self.head(self.layers(self.embed(words)))

    axes = nestling.trace(Tied(), torch.zeros(2, 3, dtype=torch.long))
    assert axes.tied == {"head.weight": "embed.weight"}
    assert list(axes.blocks) == ["layers.0", "layers.1"]
    assert nestling.AxisMap.from_json(axes.to_json()) == axes


def test_an_empty_parameter_survives():
    net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    net.register_parameter("nothing", nn.Parameter(torch.empty(0)))
    axes = nestling.trace(net, torch.zeros(1, 4))
    assert nestling.AxisMap.from_json(axes.to_json()) == axes


def test_a_map_without_roles_is_read():
    axes = nestling.trace(NET, torch.zeros(1, 4))
    assert {name: axis.role for name, axis in axes.table.items()} == {
        "model.0": "hidden",
        "model.0.1": "input",
        "model.2": "output",
    }
    old = good()
    for axis in old["axes"]:
        del axis["role"]
    assert nestling.AxisMap.from_json(json.dumps(old)) == axes


AXIS = {"name": "model.0", "size": 8}
BAD = {
    "unknown field": {"extra": 1},
    "unknown field of an axis": {"axes": [AXIS | {"colour": "red"}], "dims": {}},
    "axes not a list": {"axes": {"model.0": 8}},
    "dims not an object": {"dims": ["model.0"]},
    "dims not text": {"dims": {"0.weight": ["model.0", 4]}},
    "blocks not lists": {"blocks": {"0": "0.weight"}},
    "tied not text": {"tied": {"0.weight": 1}},
    "axis given twice": {"axes": [AXIS, AXIS], "dims": {}},
    "size 0": {"axes": [AXIS | {"size": 0}], "dims": {}},
    "size below 0": {"axes": [AXIS | {"size": -8}], "dims": {}},
    "size a fraction": {"axes": [AXIS | {"size": 8.5}], "dims": {}},
    "size as text": {"axes": [AXIS | {"size": "8"}], "dims": {}},
    "size a truth": {"axes": [AXIS | {"size": True}], "dims": {}},
    "unknown role": {"axes": [AXIS | {"role": "colour"}], "dims": {}},
    "name empty": {"axes": [AXIS | {"name": ""}], "dims": {}},
    "name with a space": {"axes": [AXIS | {"name": "a b"}], "dims": {}},
    "name of a number": {"axes": [AXIS | {"name": "8"}], "dims": {}},
    "name with a line end": {"axes": [AXIS | {"name": "a\n"}], "dims": {}},
    "block of an unknown tensor": {"blocks": {"0": ["9.weight"]}},
    "tied to an unknown tensor": {"tied": {"0.weight": "9.weight"}},
    "unknown tensor tied": {"tied": {"9.weight": "0.weight"}},
    "dims of an unknown axis": {"dims": {"0.weight": "nobody 4"}},
    "dims not readable": {"dims": {"0.weight": "model.0 *"}},
    "dims unclosed": {"dims": {"0.weight": "(model.0 4"}},
    # a tie must lead to a tensor listed before, of the same dims, or merging could not follow it
    "tied to itself": {"tied": {"0.weight": "0.weight"}},
    "tied to a later one": {"tied": {"0.bias": "2.bias"}},
    "tied in a circle": {"tied": {"0.bias": "2.bias", "2.bias": "0.bias"}},
    "tied to another shape": {"tied": {"0.bias": "0.weight"}},
}


@pytest.mark.parametrize("change", BAD.values(), ids=BAD)
def test_a_bad_map_is_refused_in_one_sentence(change):
    with pytest.raises(AxisError) as caught:
        nestling.AxisMap.from_json(json.dumps(good() | change))
    assert one_sentence(caught.value)


@pytest.mark.parametrize("field", ["axes", "dims", "blocks", "tied"])
def test_a_missing_field_is_named(field):
    short = {name: value for name, value in good().items() if name != field}
    with pytest.raises(AxisError, match=field):
        nestling.AxisMap.from_json(json.dumps(short))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not json",
        "[]",
        "null",
        "{",
        "1",
        b"\xff\xfe",
        b'{"axes": [], "dims": {"\xff": "1"}, "blocks": {}, "tied": {}}',
    ],
)
def test_what_is_no_json_is_refused(text):
    with pytest.raises(AxisError) as caught:
        nestling.AxisMap.from_json(text)
    assert one_sentence(caught.value)


def test_the_table_good_is_good():
    """The base of the bad maps above is accepted, so each of them is refused for its own reason."""
    assert nestling.AxisMap.from_json(json.dumps(good())).axes == {"model.0": 8}
