"""Convolutions as products: PyTorch's own in double precision, whatever the images and kernels are."""

import copy

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call, grad, vmap

from nestling.client.grouped.train_group import Member, train_group
from nestling.client.grouped.trial import can_group
from nestling.kernels import kn2row
from nestling.kernels import memory_format as formats
from nestling.kernels.grouped_layers import Grouped
from nestling.kernels.kn2row import Kn2row, _derivatives, can_be_products
from nestling.kernels.memory_format import set_memory_format
from nestling.settings import LocalTraining
from tests.client.training_cases import inputs_of, net_of

LAWS = settings(deadline=None, derandomize=True, max_examples=150, database=None)
SIZE = st.integers(1, 6)


def close(one, two):
    torch.testing.assert_close(one, two, rtol=1e-10, atol=1e-10)


@given(
    st.tuples(st.integers(1, 3), st.integers(1, 5), SIZE, SIZE),
    st.integers(1, 5),
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.tuples(st.integers(0, 4), st.integers(0, 4)),
    st.booleans(),
    st.sampled_from([torch.contiguous_format, torch.channels_last]),
)
@LAWS
def test_outputs_and_gradients_are_those_of_pytorch(shape, outputs, kernel, stride, padding, bias, order):
    assume(all(size + 2 * pad >= place for size, pad, place in zip(shape[2:], padding, kernel, strict=True)))
    torch.manual_seed(0)
    layer = nn.Conv2d(shape[1], outputs, kernel, stride, padding, bias=bias).double()
    other = copy.deepcopy(layer)
    Kn2row.become(other)
    images = torch.randn(shape, dtype=torch.float64).contiguous(memory_format=order)
    seen = [images.clone().requires_grad_() for _ in range(2)]
    results = [net(one) for net, one in zip((layer, other), seen, strict=True)]
    close(*results)
    slope = torch.randn(results[0].shape, dtype=torch.float64)
    for result in results:
        result.backward(slope)
    close(seen[0].grad, seen[1].grad)
    for one, two in zip(layer.parameters(), other.parameters(), strict=True):
        close(one.grad, two.grad)
        assert two.grad.stride() == two.stride()  # or a step would have to copy it


@pytest.mark.parametrize("wanted", [0, 1, 2])
def test_derivatives_that_nobody_asks_for_are_not_computed(wanted, monkeypatch):
    """The first layer of a net, and frozen ones: half of the work."""
    layer = nn.Conv2d(3, 2, 3, padding=1).double()
    Kn2row.become(layer)
    images = torch.randn(2, 3, 2, 2, dtype=torch.float64)
    leaves = (images, layer.weight, layer.bias)
    for k, one in enumerate(leaves):
        one.requires_grad_(k == wanted)
    computed = []

    def watched(*given):
        computed.append(_derivatives(*given))
        return computed[-1]

    monkeypatch.setattr(kn2row, "_derivatives", watched)
    layer(images).sum().backward()
    (actual,) = computed
    assert [one is not None for one in actual] == [k == wanted for k in range(3)]
    assert leaves[wanted].grad is not None
    with torch.no_grad():
        assert not layer(images).requires_grad


@pytest.mark.parametrize("bias", [True, False])
def test_derivatives_have_derivatives(bias):
    layer = nn.Conv2d(3, 2, 3, stride=2, padding=1, bias=bias).double()
    Kn2row.become(layer)
    images = torch.randn(2, 3, 3, 3, dtype=torch.float64, requires_grad=True)
    names = [name for name, _ in layer.named_parameters()]

    def run(images, *values):
        return functional_call(layer, dict(zip(names, values, strict=True)), (images,))

    assert torch.autograd.gradcheck(run, (images, *layer.parameters()))
    assert torch.autograd.gradgradcheck(run, (images, *layer.parameters()))


def test_transforms_of_functions_reach_through():
    """Gradients sample by sample, as differential privacy asks for them."""
    layer = nn.Conv2d(3, 2, 3, padding=1).double()
    other = copy.deepcopy(layer)
    Kn2row.become(other)
    images = torch.randn(4, 3, 2, 2, dtype=torch.float64)

    def per_sample(net):
        def loss(weights, image):
            return functional_call(net, weights, (image[None],)).square().sum()

        weights = {name: value.detach() for name, value in net.named_parameters()}
        return vmap(grad(loss), (None, 0))(weights, images)

    wanted, actual = per_sample(layer), per_sample(other)
    assert actual["weight"].shape == (4, 2, 3, 3, 3)
    for name, value in wanted.items():
        close(actual[name], value)


def test_a_single_image_needs_no_dimension_for_more():
    layer = nn.Conv2d(3, 2, 3, padding=1).double()
    image = torch.randn(3, 2, 2, dtype=torch.float64)
    wanted = layer(image)
    Kn2row.become(layer)
    close(layer(image), wanted)
    assert layer(image[None]).shape == (1, 2, 2, 2)
    assert layer(image[None][:0]).shape == (0, 2, 2, 2)
    with pytest.raises(RuntimeError):
        layer(image[None, :2])


@pytest.mark.parametrize(
    "options", [{"groups": 2}, {"dilation": 2}, {"padding": "same"}, {"padding": 1, "padding_mode": "circular"}]
)
def test_what_is_not_plain_stays_as_it_is(options):
    assert not can_be_products(nn.Conv2d(4, 4, 3, **options))


def test_a_class_of_its_own_stays_as_it_is():
    class Standardised(nn.Conv2d):
        pass

    assert not can_be_products(Standardised(4, 4, 3))


def test_weights_keep_their_place_in_memory_when_others_are_loaded():
    layer = nn.Conv2d(5, 4, 3)
    given = {name: torch.randn_like(value) for name, value in layer.state_dict().items()}
    Kn2row.become(layer)
    weight, stride = layer.weight, layer.weight.stride()
    assert weight[:, :, 0, 0].is_contiguous()  # the products read them as they lie
    layer.load_state_dict(given)
    assert layer.weight is weight
    assert layer.weight.stride() == stride
    assert all(torch.equal(layer.state_dict()[name], value) for name, value in given.items())


@pytest.mark.parametrize("name", ["cnn", "preresnet18"])
def test_clients_of_a_group_may_have_them(name, monkeypatch):
    """A number of clients that somebody asked for may train together however wide their model is."""
    monkeypatch.setattr(formats, "_WIDE", 6)
    net = copy.deepcopy(net_of(name)[0])
    set_memory_format(net, inputs_of(name, count=1))
    assert any(isinstance(module, Kn2row) for module in net.modules())
    inputs, targets = inputs_of(name), torch.arange(5)
    layout = can_group(net, inputs, targets).layout
    assert layout == "channels"
    states = [{key: value.clone() for key, value in net.state_dict().items()} for _ in range(2)]
    members = [Member(state, torch.arange(4), torch.Generator(), torch.Generator()) for state in states]
    chosen = []

    def batch(who, parts):
        chosen.extend(parts)
        joined = torch.cat(list(parts))
        return inputs[joined], targets[joined]

    options = LocalTraining(epochs=1, batch_size=4, lr=0.1, momentum=0.0, weight_decay=0.0, clip_norm=0.0)
    trained = train_group(Grouped(net, 2, layout), members, batch, options, lr=0.1)
    net.train()
    F.cross_entropy(net(inputs[chosen[0]]), targets[chosen[0]]).backward()
    for key, parameter in net.named_parameters():
        close(trained.states()[0][key], parameter.detach() - 0.1 * parameter.grad)
