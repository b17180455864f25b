"""Packed slices: exact after the journey, refused in one sentence when they are something else."""

import json
import pickle

import pytest
import safetensors.torch
import torch
from torch import nn

import nestling
from nestling.cut import wire
from nestling.errors import StateError


def slice_of_a_tied_model():
    model = nn.Sequential(nn.Embedding(5, 8), nn.Linear(8, 8), nn.Linear(8, 5, bias=False))
    model[2].weight = model[0].weight
    axes = nestling.trace(model, torch.zeros(2, 3, dtype=torch.long))
    plan = nestling.plan(axes, 0.5)
    return model, axes, plan, nestling.extract(axes, plan, model.state_dict())


def test_a_slice_survives_the_journey_and_merges():
    model, axes, plan, state = slice_of_a_tied_model()
    data = nestling.pack(state, plan)
    back, same = nestling.unpack(data)
    assert same == plan
    assert all(torch.equal(back[name], state[name]) for name in state)
    assert back["2.weight"] is back["0.weight"]  # tied, and stored once
    assert len(data) < sum(tensor.nbytes for tensor in state.values()) + 2000
    tally = nestling.Tally(axes, model.state_dict())
    tally.add(back, same)
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in tally.value().items())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"nonsense",
        pickle.dumps({"weight": 1}),
        safetensors.torch.save({"weight": torch.ones(2)}),
        safetensors.torch.save({"weight": torch.ones(2)}, {"nestling": "{"}),
        *(
            safetensors.torch.save({"a": torch.ones(2)}, {"nestling": json.dumps(about)})
            for about in (
                {"format": "nestling-slice-1", "plan": "no plan", "tied": {}},
                {"format": "nestling-slice-1", "plan": {"axes": {"conv": []}}, "tied": {}},
                {"format": "nestling-slice-1", "plan": {"axes": {}}, "tied": {"b": "c"}},
                {"format": "nestling-slice-1", "plan": {"axes": {}}, "tied": {"a": "a"}},
                {"format": "another", "plan": {"axes": {}}, "tied": {}},
            )
        ),
    ],
)
def test_anything_else_is_refused_in_one_sentence(data):
    with pytest.raises(nestling.NestlingError) as caught:
        nestling.unpack(data)
    assert "\n" not in str(caught.value)


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "phone.safetensors"
    _, _, plan, state = slice_of_a_tied_model()
    wire.save(path, state, plan)
    before = path.read_bytes()
    monkeypatch.setattr(wire.os, "fsync", lambda _: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        wire.save(path, {name: tensor + 1 for name, tensor in state.items()}, plan)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["phone.safetensors"]


def test_a_missing_file_is_told():
    with pytest.raises(StateError, match="cannot be read"):
        wire.load("/nowhere/phone.safetensors")


def test_equal_slices_are_equal_bytes():
    _, _, plan, state = slice_of_a_tied_model()
    assert len({nestling.pack(state, plan) for _ in range(20)}) == 1
