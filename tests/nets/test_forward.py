"""What every model accepts and gives, and that no forward pass has a width written into it."""

import copy

import pytest
import torch
from torch import fx, nn

from nestling.nets import build, example, names
from nestling.nets.cnn import CNN
from nestling.nets.norms import NORMS
from tests.quick import mostly_slow

TINY = {
    "mlp": {"widths": (6, 5)},
    "cnn": {"widths": (4, 4, 8, 8)},
    "cnn1d": {"widths": (4, 4, 8, 8)},
    "lstm": {"embedding": 3, "widths": (6, 5)},
    "preresnet18": {"widths": (4, 8, 12, 16)},
    "preresnet18-paper": {"widths": (4, 8, 12, 16)},
    "resnet8": {"widths": (4, 8, 12, 16)},
    "resnet18": {"widths": (4, 8, 12, 16)},
    "resnet34": {"widths": (4, 8, 12, 16)},
    "resnet18-exits": {"widths": (4, 8, 12, 16)},
    "resnet34-exits": {"widths": (4, 8, 12, 16)},
    "resnet56": {"widths": (4, 8, 12)},
    "resnet110": {"widths": (4, 8, 12)},
    "wide-resnet101-2": {"widths": (4, 4, 4, 4), "stem_width": 4},
    "vgg16": {"widths": ((4, 4), (4, 8), (8,) * 3, (8,) * 3, (8,) * 3)},
    "vit-tiny": {"width": 12, "head_width": 3, "hidden": 20},
    "vit-b16": {"width": 12, "head_width": 1, "hidden": 20},
    "transformer-mlm": {"width": 8, "head_width": 3, "hidden": 20, "vocabulary": 50},
    "transformer-nwp": {"width": 8, "head_width": 3, "hidden": 20, "vocabulary": 50},
}
SHAPES = {
    "mlp": ((1, 28, 28), (10,)),
    "cnn": ((1, 28, 28), (10,)),
    "cnn1d": ((9, 128), (6,)),
    "lstm": ((80,), (80, 80)),
    "preresnet18": ((3, 32, 32), (10,)),
    "preresnet18-paper": ((3, 32, 32), (10,)),
    "resnet8": ((1, 28, 28), (10,)),
    "resnet18": ((3, 32, 32), (10,)),
    "resnet34": ((3, 32, 32), (10,)),
    "resnet18-exits": ((3, 32, 32), (10,)),
    "resnet34-exits": ((3, 32, 32), (10,)),
    "resnet56": ((3, 32, 32), (10,)),
    "resnet110": ((3, 32, 32), (10,)),
    "wide-resnet101-2": ((3, 224, 224), (10,)),
    "vgg16": ((3, 32, 32), (10,)),
    "vit-tiny": ((3, 32, 32), (10,)),
    "vit-b16": ((3, 224, 224), (10,)),
    "transformer-mlm": ((64,), (64, 33278)),
    "transformer-nwp": ((20,), (20, 10000)),
}
BIG = {"wide-resnet101-2", "vit-b16"}


@pytest.mark.parametrize("name", mostly_slow(SHAPES, quick=6))
def test_papers_shapes(name):
    given, expected = SHAPES[name]
    device = "meta" if name in BIG else "cpu"
    (x,) = example(name, batch=2)
    with torch.device(device), torch.no_grad():
        output = build(name).eval()(x.to(device))
    assert x.shape == (2, *given)
    for y in output if name.endswith("-exits") else [output]:
        assert y.shape == (2, *expected)
        assert device == "meta" or y.isfinite().all()


def test_every_model_is_covered():
    assert list(SHAPES) == list(TINY) == names()


@pytest.mark.parametrize("name", TINY)
def test_no_width_is_written_into_a_forward(name):
    """The wide model with the layers of a narrow one is the narrow one."""
    with torch.device("meta"):
        wide = build(name, **{k: v for k, v in TINY[name].items() if k == "vocabulary"})
    narrow = build(name, **TINY[name]).eval()
    grafted = copy.deepcopy(wide).eval()
    for path, layer in narrow.named_modules():
        if not list(layer.children()):
            grafted.set_submodule(path, layer, strict=True)
        for own, parameter in layer.named_parameters(recurse=False):  # step sizes sit on the blocks themselves
            setattr(grafted.get_submodule(path), own, parameter)
    (x,) = example(name, batch=1, **TINY[name])
    if name == "wide-resnet101-2":
        x = x[..., :64, :64]
    with torch.no_grad():
        torch.testing.assert_close(grafted(x), narrow(x), rtol=0, atol=0)


@pytest.mark.parametrize("name", TINY)
def test_symbolic_trace(name):
    with torch.device("meta"):
        fx.symbolic_trace(build(name, **TINY[name]))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", ["cnn", "cnn1d", "preresnet18", "resnet18", "vgg16"])
def test_norms(name, norm):
    options = TINY[name] | {"norm": norm, "classes": 3}
    net = build(name, **options)
    (x,) = example(name, **options)
    assert net(x).shape == (2, 3)
    groups = {m.num_groups for m in net.modules() if isinstance(m, nn.GroupNorm)}
    widths = {m.num_channels for m in net.modules() if isinstance(m, nn.GroupNorm)}
    assert groups == {"gn": {4}, "ln": {1}, "in": widths}.get(norm, set())
    assert any(isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d) for m in net.modules()) == (norm == "bn")


def test_instance_norm_is_group_norm_of_every_channel():
    x = torch.randn(2, 6, 5, 5)
    ours = build("cnn", widths=(6, 6, 6, 6), norm="in").blocks[0].norm
    torch.testing.assert_close(ours(x), nn.InstanceNorm2d(6)(x))


def test_next_word_model_does_not_see_the_next_word():
    net = build("transformer-nwp", **TINY["transformer-nwp"]).eval()
    (ids,) = example("transformer-nwp", batch=1, **TINY["transformer-nwp"])
    other = ids.clone()
    other[:, 10:] = (other[:, 10:] + 1) % 50
    with torch.no_grad():
        torch.testing.assert_close(net(ids)[:, :10], net(other)[:, :10])
        assert not torch.allclose(net(ids)[:, 10], net(other)[:, 10])


def test_masked_model_sees_both_sides():
    net = build("transformer-mlm", **TINY["transformer-mlm"]).eval()
    (ids,) = example("transformer-mlm", batch=1, **TINY["transformer-mlm"])
    other = ids.clone()
    other[:, -1] = 50  # the [MASK] row beyond the vocabulary
    with torch.no_grad():
        assert not torch.allclose(net(ids)[:, 0], net(other)[:, 0])


def test_character_model_reads_left_to_right():
    net = build("lstm", widths=(6, 5))
    (ids,) = example("lstm", batch=1)
    with torch.no_grad():
        torch.testing.assert_close(net(ids)[:, :30], net(ids[:, :30]))


@pytest.mark.parametrize("name", names())
def test_every_parameter_is_trained(name):
    net = build(name, **TINY[name])
    (x,) = example(name, **TINY[name])
    if name == "wide-resnet101-2":
        x = x[..., :64, :64]
    output = net(x)
    sum(y.square().sum() for y in (output if name.endswith("-exits") else [output])).backward()
    assert [key for key, p in net.named_parameters() if p.grad is None] == []


@pytest.mark.parametrize("dimensions", [1, 2])
def test_the_relu_of_pooled_values_is_that_of_the_paper(dimensions):
    """Pooling first is the same function with the same gradients, to the bit: also where values are equal."""
    torch.manual_seed(0)
    net = CNN(dimensions, widths=(4, 8))
    inputs = torch.randint(3, (5, 1, *[12] * dimensions)).float()
    block = net.blocks[0]
    normed = block.norm(block.conv(inputs)).detach().round(decimals=1)
    ours, theirs = normed.clone().requires_grad_(), normed.clone().requires_grad_()
    out, expected = block.relu(block.pool(ours)), block.pool(block.relu(theirs))
    slopes = torch.randn_like(out)
    (out * slopes).sum().backward()
    (expected * slopes).sum().backward()
    assert [name for name, _ in block.named_children()] == ["conv", "norm", "pool", "relu"]
    assert torch.equal(out, expected)
    assert torch.equal(ours.grad, theirs.grad)
