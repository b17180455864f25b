"""A sub-model is the model that the same class makes at the smaller size, holding the weights that were cut out."""

from math import ceil

import pytest
import torch
from torch import nn

import nestling
from nestling.nets import build, example
from tests.axes.axes_prove import IMAGES, TOKENS, VECTORS, Net, assert_same, noisy, outputs


def perceptron(width):
    return nn.Sequential(nn.Linear(4, width), nn.LayerNorm(width), nn.PReLU(width), nn.Linear(width, 3))


def convolutions(width):
    return nn.Sequential(
        nn.Conv2d(3, width, 3),
        nn.BatchNorm2d(width),
        nn.GroupNorm(2, width),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, groups=width),
        nn.ConvTranspose2d(width, width // 2, 3),
        nn.Flatten(),
        nn.Linear(width // 2 * 16, 3),
    )


def recurrent(kind, **options):
    return lambda width: Net(
        lambda net, x: net.head(net.rnn(x)[0]),
        rnn=kind(4, width, batch_first=True, **options),
        head=nn.Linear(width * (2 if options.get("bidirectional") else 1), 3),
    )


def encoder(norm_first):
    return lambda width: Net(
        lambda net, x: net.head(net.layers(net.embed(x))),
        embed=nn.Linear(4, width),
        layers=nn.TransformerEncoder(
            nn.TransformerEncoderLayer(width, 2, 2 * width, batch_first=True, norm_first=norm_first), 2
        ),
        head=nn.Linear(width, 3),
    )


LAYERS = {
    "perceptron": (perceptron, VECTORS),
    "convolutions": (convolutions, IMAGES),
    "lstm": (recurrent(nn.LSTM, num_layers=2), TOKENS),
    "lstm-both-ways": (recurrent(nn.LSTM, num_layers=2, bidirectional=True), TOKENS),
    "gru": (recurrent(nn.GRU), TOKENS),
    "rnn": (recurrent(nn.RNN, num_layers=2), TOKENS),
    "encoder": (encoder(False), TOKENS),
    "encoder-norm-first": (encoder(True), TOKENS),
}


def assert_half(whole, half, given):
    whole = noisy(whole)
    given = [tensor.double() if tensor.is_floating_point() else tensor for tensor in given]
    axes = nestling.trace(whole, *given)
    plan = nestling.plan(axes, width=0.5)
    half = half.double().eval()
    half.load_state_dict(nestling.extract(axes, plan, whole.state_dict()))  # the same names, the same shapes
    small = nestling.submodel(whole, axes, plan)
    assert str(small) == str(half)  # the sizes that layers write down about themselves
    with torch.no_grad():
        assert_same(outputs(small, given, {}), outputs(half, given, {}))


@pytest.mark.parametrize("name", LAYERS)
def test_half_of_a_layer(name):
    make, given = LAYERS[name]
    assert_half(make(16), make(8), given)


# the options of the papers' nets, whole; widths are halved as the method says: ceil(rate · width)
NETS = {
    "mlp": {"widths": (7, 10)},
    "cnn": {"widths": (4, 7, 8, 9)},
    "cnn1d": {"widths": (4, 7, 8, 9)},
    "lstm": {"embedding": 5, "widths": (6, 7)},
    "preresnet18-paper": {"widths": (4, 7, 8, 9)},
    "resnet8": {"widths": (4, 7, 8, 9)},
    "resnet18": {"widths": (4, 7, 8, 9)},
    "resnet56": {"widths": (4, 7, 8), "depths": (2, 1, 1)},
    "wide-resnet101-2": {"widths": (2, 4, 4, 6), "depths": (1, 2, 1, 1), "stem_width": 5},
    "vgg16": {"widths": ((4,), (7,), (8, 9), (5,), (6,))},
    "vit-tiny": {"width": 14, "head_width": 6, "hidden": 10, "depth": 2},
    "transformer-mlm": {"width": 9, "heads": 2, "head_width": 6, "hidden": 10, "vocabulary": 20, "depth": 2},
    "transformer-nwp": {"width": 9, "heads": 2, "head_width": 6, "hidden": 10, "vocabulary": 20, "depth": 2},
}
CUT = ("widths", "width", "head_width", "hidden", "embedding", "stem_width")


def halved(value):
    return tuple(map(halved, value)) if isinstance(value, tuple) else ceil(value / 2)


@pytest.mark.parametrize("name", NETS)
def test_half_of_a_paper_net(name):
    options = NETS[name]
    small = {key: halved(value) if key in CUT else value for key, value in options.items()}
    (given,) = example(name, **options)
    if name == "lstm":
        given = given[:, :6]
    if name == "wide-resnet101-2":
        given = given[:, :, :64, :64]
    assert_half(build(name, **options), build(name, **small), (given,))


@pytest.mark.parametrize("norm", ["gn", "ln", "in", "none"])
def test_half_of_a_net_with_another_norm(norm):
    """HeteroFL's ablation: groups stay four, or as many as there are channels."""
    widths = (8, 16, 16, 24)
    (given,) = example("cnn")
    assert_half(build("cnn", widths=widths, norm=norm), build("cnn", widths=halved(widths), norm=norm), (given,))
