"""The papers' language models under their methods: windows roll inside every head, and rows of words stay whole."""

import functools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import nestling
from nestling.cut import Tally, extract, submodel
from nestling.methods import make
from nestling.nets import build, example
from tests.harness import plan_of
from tests.methods.method_cases import LAWS

NETS = {
    "transformer-mlm": {"width": 12, "heads": 3, "hidden": 10, "vocabulary": 20, "depth": 2, "positions": 6},
    "transformer-nwp": {"width": 16, "heads": 4, "hidden": 12, "vocabulary": 15, "depth": 1, "positions": 6},
}


@functools.cache
def net_of(name, double=True):
    torch.manual_seed(0)
    net = build(name, **NETS[name]).eval()
    ids = example(name, **NETS[name])[0] % 15
    return (net.double() if double else net), nestling.trace(net, ids), ids


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("method", ["heterofl", "fedrolex", "fed-dropout"])
@LAWS
@given(round=st.integers(1, 40), ratio=st.sampled_from([1 / 2, 1 / 4, 1 / 8]))
def test_heads_never_mix(name, method, round, ratio):
    """P3: what a sub-model has of a head comes from that head, the same units of each, in q, k, v and o."""
    net, axes, _ = net_of(name)
    plan = plan_of(make(method), axes, ratio, round)
    heads = NETS[name]["heads"]
    inside = NETS[name]["width"] // heads
    marked = {key: torch.zeros_like(tensor) for key, tensor in net.state_dict().items()}
    place = torch.arange(heads * inside, dtype=torch.float64)
    for layer in "qkv":
        marked[f"blocks.0.attention.body.attention.{layer}.bias"] = place.clone()
    marked["blocks.0.attention.body.attention.o.weight"] = place.repeat(NETS[name]["width"], 1)
    small = extract(axes, plan, marked)
    seen = {tuple(small[f"blocks.0.attention.body.attention.{layer}.bias"].tolist()) for layer in "qkv"}
    seen |= {tuple(row) for row in small["blocks.0.attention.body.attention.o.weight"].tolist()}
    (units,) = seen
    by_head = torch.tensor(units).view(heads, -1).long()
    assert torch.equal(by_head // inside, torch.arange(heads)[:, None].expand_as(by_head))
    assert torch.equal(by_head % inside, (by_head % inside)[:1].expand_as(by_head))
    assert small["token.weight"].shape[0] == len(net.token.weight), "all words stay"
    assert small["head.weight"].shape[0] == NETS[name]["vocabulary"]


@pytest.mark.parametrize("name", NETS)
def test_a_full_client_computes_what_the_global_model_does(name):
    """P3: bit for bit, wherever the window stands."""
    net, axes, ids = net_of(name)
    for round in (1, 5):
        plan = plan_of(make("fedrolex"), axes, 1.0, round)
        assert torch.equal(submodel(net, axes, plan)(ids), net(ids))


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("method", ["heterofl", "fedrolex", "fed-dropout"])
def test_identity_and_untouched(name, method):
    """P1 and P8: nothing trained, nothing changed; and what no client held keeps its value."""
    net, axes, _ = net_of(name, double=False)
    state = net.state_dict()
    tally = Tally(axes, state)
    plans = [plan_of(make(method), axes, ratio, 3, client) for client, ratio in enumerate((1 / 2, 1 / 4, 1 / 4))]
    for plan in plans:
        tally.add(extract(axes, plan, state), plan)
    assert all(torch.equal(value, state[key]) for key, value in tally.value().items())
    tally.restart(state)
    tally.add({key: value + 1 for key, value in extract(axes, plans[1], state).items()}, plans[1])
    for key, value in tally.value().items():
        held = tally.weights(key) > 0
        assert torch.equal(value[~held], state[key][~held])
        assert torch.allclose(value[held], state[key][held] + 1)


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("ratio", [1 / 2, 1 / 4])
def test_a_period_of_windows_trains_all_units_alike(name, ratio):
    """P5, inside heads too."""
    _, axes, _ = net_of(name)
    period = 240  # shared by all sizes here
    plans = [plan_of(make("fedrolex"), axes, ratio, round) for round in range(1, period + 1)]
    for axis, size in axes.axes.items():
        if axis in axes.groups:
            continue
        counts = torch.zeros(size)
        for plan in plans:
            counts[plan.index(axis)] += 1
        assert counts.min() == counts.max() > 0, axis


def test_scalers_leave_the_words_alone():
    """Logits are not hidden: a Scaler behind the last layer would change the loss of every level."""
    from nestling.methods.parts.scaler import scaled_layers  # noqa: PLC0415

    net, axes, _ = net_of("transformer-mlm")
    actual = scaled_layers(net, axes)
    assert net.head not in actual
    assert net.token in actual
    assert net.position in actual
    assert sum(isinstance(layer, nn.Linear) for layer in actual) == 2 * 6 + 1
