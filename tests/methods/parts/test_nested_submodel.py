"""Narrower models inside a client's own: the function, and gradients that reach only what they use."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call

import nestling
from nestling import Plan
from nestling.errors import PlanError
from nestling.methods.parts.nested_submodel import nested_submodel
from nestling.methods.parts.static_norms import make_static
from tests.client.training_cases import inputs_of, net_of
from tests.harness import slice_of

NETS = ["mlp", "lstm", "cnn", "preresnet18", "vit-tiny", "transformer-mlm"]


def compare(net, axes, inputs, ratio, width):
    """The narrower model of a client and the sub-model cut from the whole net: the same numbers, the same gradients."""
    client = slice_of(net, axes, ratio)
    make_static(client.model)
    state = copy.deepcopy(client.model.state_dict())
    small, weights = nested_submodel(client, width)
    actual = functional_call(small, weights, (inputs,))
    plan = nestling.plan(axes, width)
    explicit = nestling.submodel(net, axes, plan).train()
    make_static(explicit)
    wanted = explicit(inputs)
    torch.testing.assert_close(actual, wanted, rtol=1e-12, atol=1e-14)
    actual.square().sum().backward()
    wanted.square().sum().backward()
    gradients = {name: parameter.grad for name, parameter in client.model.named_parameters()}
    for name, parameter in explicit.named_parameters():
        places = torch.zeros_like(gradients[name])
        # the place of every kept weight, found by cutting a tensor of numbers instead of weights
        numbers = torch.arange(net.get_parameter(name).numel(), dtype=torch.float64).view(net.get_parameter(name).shape)
        whole = {key: torch.zeros_like(value) for key, value in net.state_dict().items()} | {name: numbers}
        mine = nestling.extract(axes, client.plan, whole)[name]
        kept = nestling.extract(axes, plan, whole)[name]
        places[torch.isin(mine, kept)] = parameter.grad.flatten()
        torch.testing.assert_close(gradients[name], places, rtol=1e-11, atol=1e-13)
        assert not gradients[name][~torch.isin(mine, kept)].any(), name
    assert gradients.keys() == dict(explicit.named_parameters()).keys()
    after = client.model.state_dict()
    assert all(torch.equal(after[name], state[name]) for name in state)


@pytest.mark.parametrize(("ratio", "width"), [(1.0, 0.5), (0.6, 0.25), (0.5, 0.5)])
@pytest.mark.parametrize("name", NETS)
def test_as_a_submodel_of_the_whole_net(name, ratio, width):
    net, axes = net_of(name)
    compare(net, axes, inputs_of(name), ratio, width)


@settings(deadline=None, derandomize=True, max_examples=15, database=None)
@given(st.floats(0.01, 1), st.floats(0.01, 1))
def test_whatever_the_two_widths(one, other):
    net, axes = net_of("mlp")
    compare(net, axes, inputs_of("mlp"), max(one, other), min(one, other))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.token, self.middle, self.head = nn.Embedding(12, 8), nn.Linear(8, 8), nn.Linear(8, 12, bias=False)
        self.head.weight = self.token.weight

    def forward(self, x):
        return self.head(self.middle(self.token(x)).relu().mean(1))


def test_tied_weights_get_gradients_from_both_ends():
    net = Tied().double()
    ids = torch.randint(12, (5, 3))
    compare(net, nestling.trace(net, ids), ids, 0.75, 0.5)


def test_the_module_is_built_once_and_always_sees_the_latest_weights():
    net, axes = net_of("cnn")
    client, inputs = slice_of(net, axes, 0.5), inputs_of("cnn")
    small, weights = nested_submodel(client, 0.25)
    before = functional_call(small, weights, (inputs,)).detach()
    with torch.no_grad():
        client.model.head.bias += 1
    again, weights = nested_submodel(client, 0.25)
    assert again is small
    assert nested_submodel(client, 0.5)[0] is not small
    torch.testing.assert_close(functional_call(again, weights, (inputs,)), before + 1)


@pytest.mark.parametrize("pick", ["rolling", "random"])
def test_plans_that_do_not_keep_the_first_units_are_refused(pick):
    net, axes = net_of("cnn")
    client = slice_of(net, axes, 0.5, plan=nestling.plan(axes, 0.5, pick, round=5, seed=3))
    with pytest.raises(PlanError, match="first units"):
        nested_submodel(client, 0.25)


def test_a_width_beyond_the_clients_own_is_refused():
    net, axes = net_of("cnn")
    with pytest.raises(PlanError) as caught:
        nested_submodel(slice_of(net, axes, 0.25), 0.75)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("width", [0, -0.5, 1.5, float("nan")])
def test_no_such_width(width):
    net, axes = net_of("cnn")
    with pytest.raises(PlanError, match="above 0 and at most 1"):
        nested_submodel(slice_of(net, axes, 1.0), width)


class Centred(nn.Module):
    """A net that keeps a constant, as nets that normalise their inputs do."""

    def __init__(self, saved):
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 3)
        self.register_buffer("mean", torch.ones(4), persistent=saved)

    def forward(self, x):
        return self.last(self.first(x - self.mean).relu())


@pytest.mark.parametrize("saved", [True, False])
def test_buffers_that_a_forward_reads_are_there(saved):
    net = Centred(saved).double()
    x = torch.randn(5, 4, dtype=torch.float64)
    compare(net, nestling.trace(net, x), x, 1.0, 0.5)


def test_clients_that_dropped_a_block_can_be_narrowed():
    net, axes = net_of("preresnet18")
    blocks = [block for block in axes.blocks if block != "stages.0.1"]
    client = slice_of(net, axes, plan=nestling.plan(axes, 1.0, blocks=blocks))
    small, weights = nested_submodel(client, 0.5)
    actual = functional_call(small, weights, (inputs_of("preresnet18"),))
    explicit = nestling.submodel(net, axes, nestling.plan(axes, 0.5, blocks=blocks)).train()
    torch.testing.assert_close(actual, explicit(inputs_of("preresnet18")))


def test_the_whole_plan_may_be_narrowed():
    net, axes = net_of("cnn")
    client = slice_of(net, axes, 1.0, plan=Plan(key="full"))
    small, weights = nested_submodel(client, 0.5)
    wanted = nestling.submodel(net, axes, nestling.plan(axes, 0.5)).train()(inputs_of("cnn"))
    torch.testing.assert_close(functional_call(small, weights, (inputs_of("cnn"),)), wanted)
