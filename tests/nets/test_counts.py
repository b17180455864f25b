"""Golden sizes: the papers' parameter counts, whole and narrowed, to the last parameter."""

from math import ceil

import pytest
import torch
from torch import nn

from nestling.nets import build, example, names
from nestling.nets.cnn import CNN
from nestling.nets.preresnet import PreResNet
from nestling.nets.transformer import Transformer

WHOLE = [
    ("mlp", {}, 199_210),
    ("cnn", {}, 1_556_874),
    ("cnn1d", {}, 523_782),
    ("lstm", {}, 819_920),
    ("preresnet18", {}, 11_172_170),
    ("preresnet18-paper", {}, 9_622_090),
    ("resnet8", {}, 4_906_314),
    ("resnet8", {"channels": 3}, 4_907_466),
    ("resnet18", {}, 11_173_970),
    ("resnet18", {"learn_steps": False}, 11_173_962),
    ("resnet34", {}, 21_282_138),
    ("resnet18-exits", {}, 11_421_800),
    ("resnet34-exits", {}, 21_529_960),
    ("resnet56", {}, 855_797),
    ("resnet110", {}, 1_730_768),
    ("wide-resnet101-2", {}, 124_858_219),
    ("wide-resnet101-2", {"classes": 1000, "learn_steps": False}, 126_886_696),
    ("vgg16", {}, 14_728_266),
    ("vit-tiny", {}, 5_362_786),
    ("vit-b16", {}, 85_806_370),
    ("vit-b16", {"classes": 1000, "learn_steps": False}, 86_567_656),
    ("transformer-mlm", {}, 19_263_486),
    ("transformer-nwp", {}, 4_374_416),
]

NARROW = {
    "cnn": (391_370, 98_922, 25_274, 6_594),
    "preresnet18-paper": (2_408_746, 603_802, 151_762, 38_350),
    "preresnet18": (2_796_714, 701_018, 176_178, 44_510),
    "transformer-mlm": (9_107_710, 4_435_326, 2_200_510, 1_108_446),
    "transformer-nwp": (1_745_744, 766_256, 360_224, 178_136),
}


@pytest.fixture(autouse=True)
def _weightless():
    with torch.device("meta"):
        yield


def size(net):
    return sum(p.numel() for p in net.parameters())


@pytest.mark.parametrize(("name", "options", "parameters"), WHOLE)
def test_whole_model(name, options, parameters):
    assert size(build(name, **options)) == parameters


def test_every_model_has_a_golden_count():
    assert {name for name, _, _ in WHOLE} == set(names())


def narrow(name, rate):
    def cut(*widths):
        return tuple(ceil(rate * width) for width in widths)

    match name:
        case "cnn":
            return CNN(widths=cut(64, 128, 256, 512))
        case "preresnet18":
            return PreResNet(widths=cut(64, 128, 256, 512))
        case "preresnet18-paper":
            return PreResNet(depths=(1, 1, 1, 2), widths=cut(64, 128, 256, 512))
        case "transformer-mlm":
            width, head_width, hidden = cut(256, 32, 512)
            return Transformer(width=width, head_width=head_width, hidden=hidden)
        case "transformer-nwp":
            width, head_width, hidden = cut(128, 16, 2048)
            return Transformer(vocabulary=10_000, depth=3, width=width, head_width=head_width, hidden=hidden)


@pytest.mark.parametrize("name", NARROW)
def test_narrow_model(name):
    assert tuple(size(narrow(name, 1 / 2**level)) for level in range(1, 5)) == NARROW[name]


def fedmorph_flops(net, x):
    """Multiply-adds, two for every normalised value, one for every added bias of a convolution."""
    total = 0

    def count(layer, _, y):
        nonlocal total
        if isinstance(layer, nn.Conv2d):
            total += y.numel() * (layer.weight[0].numel() + (layer.bias is not None))
        elif isinstance(layer, nn.Linear):
            total += layer.weight.numel()
        else:
            total += 2 * y.numel()

    for layer in net.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear | nn.BatchNorm2d):
            layer.register_forward_hook(count)
    net.eval()(x)
    return total


def test_fedmorph_resnet18_flops():
    net = build("resnet18", pool=False, learn_steps=False)
    (x,) = example("resnet18", batch=1)
    assert fedmorph_flops(net, x.to("meta")) == 556_651_520


def test_fedmorph_vgg16_flops():
    (x,) = example("vgg16", batch=1)
    pooled = 512  # its table also counts the average pool over one value per channel
    assert fedmorph_flops(build("vgg16"), x.to("meta")) + pooled == 314_031_616
