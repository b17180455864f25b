"""The Scaler against nets in which the division stands where the paper puts it: in front of every norm."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import nestling
from nestling.methods.parts.scaler import scale, scaled_layers
from nestling.methods.parts.static_norms import make_static, norm_sums
from tests.client.training_cases import inputs_of, net_of
from tests.harness import slice_of

RATES = [0.5, 0.25, 0.3]


class Divide(nn.Module):
    """HeteroFL's module of its own: divides in training mode."""

    def __init__(self, rate):
        super().__init__()
        self.rate = rate

    def forward(self, x):
        return x / self.rate if self.training else x


def with_division_before_norms(model, rate):
    twin = copy.deepcopy(model)
    for path, module in list(twin.named_modules()):
        parent, _, name = path.rpartition(".")
        if name.startswith("norm"):
            setattr(twin.get_submodule(parent), name, nn.Sequential(Divide(rate), module))
    return twin


def loud(model):
    """Make norms feel the size of what they see: with a small ε a division is almost undone by them."""
    for module in model.modules():
        if hasattr(module, "eps"):
            module.eps = 0.7
    return model


def gradients(model, inputs):
    outputs = model(inputs)
    outputs.square().sum().backward()
    return outputs, [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("norm", ["bn", "none", "in", "ln"])
@pytest.mark.parametrize("name", ["cnn", "preresnet18", "vgg16"])
def test_the_same_function_as_with_divisions_before_norms(name, norm, rate):
    net, axes = net_of(name, norm=norm)
    small = loud(slice_of(net, axes, rate).model)
    make_static(small)
    expected, plain = with_division_before_norms(small, rate), copy.deepcopy(small)
    scale(small, axes, rate)
    inputs = inputs_of(name)
    actual, wanted = gradients(small, inputs), gradients(expected, inputs)
    torch.testing.assert_close(actual[0], wanted[0])
    for new, old in zip(actual[1], wanted[1], strict=True):
        torch.testing.assert_close(new, old)
    assert not torch.allclose(actual[0], plain(inputs), rtol=1e-3)  # or this test could not fail
    small.eval(), plain.eval()
    assert torch.equal(small(inputs), plain(inputs))


@pytest.mark.parametrize("name", ["mlp", "lstm", "cnn", "preresnet18", "vit-tiny", "transformer-mlm"])
def test_the_whole_model_is_left_alone(name):
    net, axes = net_of(name)
    model = copy.deepcopy(net).train()
    before = copy.deepcopy(model)
    scale(model, axes, 1.0)
    assert not any(module._forward_hooks for module in model.modules())
    assert torch.equal(model(inputs_of(name)), before(inputs_of(name)))


ATTENTION = [f"{kind}.body.{layer}" for kind, layer in [("attention", f"attention.{x}") for x in "qkvo"]]
LAYERS = {
    "mlp": {"linear1", "linear2"},
    "transformer-mlm": {
        "token",
        "position",
        "decoder.linear",
        *(f"blocks.{k}.{layer}" for k in range(2) for layer in ATTENTION),
        *(f"blocks.{k}.feedforward.body.{layer}" for k in range(2) for layer in ("up", "down")),
    },
    "vit-tiny": {
        "patch",
        "token",
        "position",
        *(f"blocks.{k}.{layer}" for k in range(2) for layer in ATTENTION),
        *(f"blocks.{k}.mlp.body.{layer}" for k in range(2) for layer in ("up", "down")),
    },
}


@pytest.mark.parametrize("name", list(LAYERS))
def test_which_outputs_are_divided_and_by_how_much(name):
    net, axes = net_of(name)
    rate = 0.5
    small = slice_of(net, axes, rate).model
    names = {id(module): path for path, module in small.named_modules()}
    assert {names[id(layer)] for layer in scaled_layers(small, axes)} == LAYERS[name]
    scale(small, axes, rate)
    divided = set()

    def look(module, args, output):
        x = args[0]
        if isinstance(module, nn.Embedding):
            plain = module.weight[x]
        elif isinstance(module, nn.Linear):
            plain = F.linear(x, module.weight, module.bias)
        else:
            plain = F.conv2d(x, module.weight, module.bias, module.stride)
        if torch.allclose(output, plain / rate):
            divided.add(names[id(module)])
        else:
            torch.testing.assert_close(output, plain)

    for module in small.modules():
        if isinstance(module, nn.Embedding | nn.Linear | nn.Conv2d):
            module.register_forward_hook(look)
    if name == "vit-tiny":
        nn.init.normal_(small.token.weight)  # it starts at zero, where a division is not seen
        for bias in [p for n, p in small.named_parameters() if n.endswith("bias")]:
            nn.init.normal_(bias)
    small(inputs_of(name))
    assert divided == LAYERS[name]


def test_layers_that_make_larger_pictures_are_divided_by_their_own_outputs():
    net = nn.Sequential(
        nn.ConvTranspose2d(3, 8, 2), nn.ReLU(), nn.ConvTranspose2d(8, 6, 2), nn.Flatten(), nn.Linear(6 * 36, 2)
    ).double()
    x = torch.randn(2, 3, 4, 4, dtype=torch.float64)
    axes = nestling.trace(net, x)
    small = nestling.submodel(net, axes, nestling.plan(axes, 0.5)).train()
    assert scaled_layers(small, axes) == [small[0], small[2]]
    plain = small[4](small[2](small[0](x).div(0.5).relu()).div(0.5).flatten(1))
    scale(small, axes, 0.5)
    torch.testing.assert_close(small(x), plain)


def test_statistics_are_taken_without_it():
    net, axes = net_of("cnn")
    small = loud(slice_of(net, axes, 0.25).model)
    make_static(small)
    plain = copy.deepcopy(small)
    scale(small, axes, 0.25)
    batches = [inputs_of("cnn", seed=k) for k in range(3)]
    actual, wanted = norm_sums(small, batches)[0], norm_sums(plain, batches)[0]
    assert all(torch.equal(actual[name], wanted[name]) for name in wanted)
