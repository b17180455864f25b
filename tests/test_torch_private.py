"""Private functions of PyTorch: in one place, tried before they are trusted, and replaced by public ones."""

import re
from pathlib import Path

import pytest
import torch
import torch._dynamo  # by `torch.optim`, at its first step: it looks at functions that are taken away here
from torch import nn

import nestling
from nestling import torch_private
from nestling.cut import means
from nestling.events import collect
from nestling.kernels import memory_format as formats
from nestling.kernels.kn2row import can_be_products
from nestling.kernels.speed_layers import speed_layers
from nestling.methods.sgd import Optimizer
from nestling.settings import LocalTraining

CACHES = (torch_private._chosen, torch_private.has_fused_sgd, torch_private.knows_transforms)
FOREACH = list(torch_private._LOOPS)


@pytest.fixture
def untried():
    """Every function is tried again, here and by whoever comes after."""
    for kept in CACHES:
        kept.cache_clear()
    yield
    for kept in CACHES:
        kept.cache_clear()


def removed(monkeypatch, name):
    monkeypatch.delattr(torch._C if name.startswith("_are") else torch, name)


def wrong(monkeypatch, name):
    """Let a function do nothing, or return what it was given."""
    monkeypatch.setattr(torch._C if name.startswith("_are") else torch, name, lambda *given, **_: given and given[0])


def test_private_functions_are_used_in_one_place():
    private = re.compile(r"torch\._[a-zA-Z]|torch\.utils\._|import _C\b")
    root = Path(nestling.__file__).parent
    users = {path.relative_to(root).as_posix() for path in root.rglob("*.py") if private.search(path.read_text())}
    assert users == {"torch_private.py"}


def test_all_of_them_work_with_the_pytorch_at_hand():
    assert torch_private.replaced() == []


@pytest.mark.parametrize("spoil", [removed, wrong])
@pytest.mark.parametrize("name", [*FOREACH, "_fused_sgd_", "_are_functorch_transforms_active"])
@pytest.mark.usefixtures("untried")
def test_one_that_is_missing_or_wrong_is_found_and_named_once(name, spoil, monkeypatch):
    spoil(monkeypatch, name)
    with collect() as events:
        assert [actual.rpartition(".")[2] for actual in torch_private.replaced()] == [name]
        torch_private.replaced()
    assert [event.kind for event in events] == ["plain PyTorch"]
    assert name in events[0].message
    layers = {layer.name: layer for layer in speed_layers()}
    assert not layers["kernels for many tensors"].on
    assert layers["fused SGD"].on == (name != "_fused_sgd_")
    assert layers["convolutions as products"].on == (name != "_are_functorch_transforms_active")


def trained(dtype, clip):
    """Weights after some steps, and a mean of them that was moved."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(12, 4)).to(dtype)
    model[0].to(memory_format=torch.channels_last)
    optimizer = Optimizer(
        list(model.parameters()), LocalTraining(momentum=0.9, weight_decay=0.01, clip_norm=clip), lr=0.1
    )
    for step in range(3):
        inputs = torch.arange(64, dtype=dtype).add(step).sin().view(2, 2, 4, 4)
        optimizer.step(model(inputs).square().sum())
    room = means.room_for(model.state_dict(), model.state_dict())
    mean = means.Mean(room, None, model.state_dict())
    for share in (1.0, 3.0):
        mean.add([share * tensor for tensor in model.state_dict().values()], share)
    return [*model.state_dict().values(), *mean.tensors.values()]


@pytest.mark.parametrize("spoil", [removed, wrong])
@pytest.mark.parametrize(("dtype", "clip"), [(torch.float32, 0.5), (torch.float64, 0.5), (torch.float32, 0.0)])
@pytest.mark.usefixtures("untried")
def test_training_and_merging_give_the_same_without_them(dtype, clip, spoil, monkeypatch):
    wanted = trained(dtype, clip)
    for kept in CACHES:
        kept.cache_clear()
    for name in (*FOREACH, "_fused_sgd_"):
        spoil(monkeypatch, name)
    with collect() as events:
        actual = trained(dtype, clip)
    assert {event.kind for event in events} == {"plain PyTorch"}
    for one, other in zip(actual, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("untried")
def test_counters_and_half_precision_pass_through_every_kernel():
    counts = [torch.tensor(3), torch.tensor(9)]
    torch_private.foreach_maximum_(counts, [torch.tensor(5), torch.tensor(2)])
    assert [int(one) for one in counts] == [5, 9]
    halves = [torch.ones(3, dtype=torch.float16)]
    torch_private.foreach_lerp_(halves, [torch.zeros(3, dtype=torch.float16)], 0.25)
    assert halves[0].tolist() == [0.75] * 3


@pytest.mark.parametrize("spoil", [removed, wrong])
@pytest.mark.usefixtures("untried")
def test_without_knowing_of_transforms_no_convolution_becomes_products(spoil, monkeypatch):
    layer = nn.Conv2d(8, 8, 3, padding=1)
    assert can_be_products(layer)
    torch_private.knows_transforms.cache_clear()
    spoil(monkeypatch, "_are_functorch_transforms_active")
    monkeypatch.setattr(formats, "_WIDE", 4)
    with collect():
        formats.set_memory_format(layer, torch.zeros(1, 8, 3, 3))
    assert type(layer) is nn.Conv2d
    images = torch.randn(2, 8, 3, 3)
    assert torch.allclose(layer(images), nn.functional.conv2d(images, layer.weight, layer.bias, padding=1), atol=1e-5)
