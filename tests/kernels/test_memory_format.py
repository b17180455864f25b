"""Memory formats change how fast a net is, and nothing else."""

import copy

import pytest
import torch
from torch import nn

from nestling.kernels import memory_format as formats
from nestling.kernels.kn2row import Kn2row
from nestling.kernels.memory_format import set_memory_format
from tests.client.training_cases import inputs_of, net_of


def products_in(model):
    """The names of the convolutions that are products."""
    return [name for name, module in model.named_modules() if isinstance(module, Kn2row)]


@pytest.mark.parametrize("wide", [256, 6])  # as it is, and so low that wide and narrow ones meet in these nets
@pytest.mark.parametrize("name", ["cnn", "cnn1d", "preresnet18", "vgg16", "vit-tiny", "mlp"])
def test_outputs_and_gradients_stay(name, wide, monkeypatch):
    monkeypatch.setattr(formats, "_WIDE", wide)
    net, other = (copy.deepcopy(net_of(name)[0]) for _ in range(2))
    set_memory_format(other, inputs_of(name, count=1))
    assert bool(products_in(other)) == (wide == 6 and name in ("cnn", "preresnet18", "vgg16"))
    assert {key: value.shape for key, value in other.state_dict().items()} == {
        key: value.shape for key, value in net.state_dict().items()
    }
    inputs = inputs_of(name)
    for model in (net, other):
        model.train()
        model(inputs).square().sum().backward()
    for (key, one), (_, two) in zip(net.named_parameters(), other.named_parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad, rtol=1e-9, atol=1e-9, msg=key)


def seen_by(model, inputs):
    """The formats of what every convolution reads: True for channels last."""
    actual = []
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_pre_hook(
                lambda _, given: actual.append(given[0].is_contiguous(memory_format=torch.channels_last))
            )
    model(inputs)
    return actual


def test_wide_convolutions_read_channels_first_wherever_they_stand():
    model = nn.Sequential(nn.Conv2d(3, 256, 3), nn.Conv2d(256, 256, 3), nn.Conv2d(256, 8, 3), nn.Conv2d(8, 256, 3))
    set_memory_format(model)
    last = [layer.weight.is_contiguous(memory_format=torch.channels_last) for layer in model]
    assert last == [True, False, True, True]
    assert seen_by(model, torch.randn(2, 3, 12, 12))[1] is False
    assert model(torch.randn(2, 3, 12, 12)).is_contiguous(memory_format=torch.channels_last)


def test_a_format_survives_weights_of_another():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3))
    given = {name: torch.randn_like(value) for name, value in model.state_dict().items()}
    set_memory_format(model)
    model.load_state_dict(given)
    assert all(layer.weight.is_contiguous(memory_format=torch.channels_last) for layer in model)
    assert all(torch.equal(model.state_dict()[name], value) for name, value in given.items())


def test_wide_convolutions_of_small_images_are_products():
    same = {"kernel_size": 3, "padding": 1}
    model = nn.Sequential(
        *(nn.Conv2d(3, 256, **same), nn.Conv2d(256, 256, **same), nn.MaxPool2d(2)),  # 8×8 pixels, and then 4×4
        *(nn.Conv2d(256, 256, **same), nn.Conv2d(256, 255, **same), nn.Conv2d(255, 256, **same)),
        *(nn.Conv2d(256, 256, **same, groups=2), nn.Conv2d(256, 256, 1)),
    )
    set_memory_format(model)
    assert products_in(model) == []  # nobody said how large images are
    model.eval()
    set_memory_format(model, torch.zeros(1, 3, 8, 8))
    assert products_in(model) == ["3", "7"]
    assert not model.training
    assert not any(layer._forward_hooks for layer in model)


class Around(nn.Module):
    """A wide convolution, and what a forward does with it."""

    def __init__(self, use):
        super().__init__()
        self.conv, self.use = nn.Conv2d(256, 256, 1), use

    def forward(self, images):
        return self.use(self.conv, images)


def test_a_convolution_of_images_of_several_sizes_counts_by_the_largest():
    for size, products in ((5, []), (4, ["conv"])):
        model = Around(lambda conv, images: conv(images).mean() + conv(images[..., :2, :2]).mean())
        set_memory_format(model, torch.zeros(1, 256, size, size))
        assert products_in(model) == products
        assert model.training


def test_asking_for_sizes_draws_nothing_and_fits_the_precision_of_the_model():
    model = Around(lambda conv, images: conv(images + torch.rand_like(images))).double()
    before = torch.get_rng_state()
    set_memory_format(model, torch.zeros(1, 256, 2, 2))
    assert torch.equal(before, torch.get_rng_state())
    assert products_in(model) == ["conv"]
