"""Replacements of unsafe kernels: the same numbers, and no unsafe call left; tests/guard proves the rest."""

import copy
import itertools
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

from nestling.axes.shapes import ShapeMode
from nestling.nets import MODELS, build
from nestling.safe_kernels import SafeKernels, convolve, convolve_transposed, guard, guarded, unguard
from nestling.safe_kernels.hooks import _unsafe_callers
from tests.quick import mostly_slow

LAST = torch.channels_last


class Calls(TorchFunctionMode):
    """The convolutions that reach PyTorch's kernels: kernel, stride, padding of each."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in (F.conv1d, F.conv2d, F.conv_transpose1d, F.conv_transpose2d):
            names = ("input", "weight", "bias", "stride", "padding")
            given = dict(zip(names, args, strict=False)) | (kwargs or {})
            self.seen.append((tuple(given["weight"].shape[2:]), given.get("stride", 1), given.get("padding", 0)))
        return func(*args, **(kwargs or {}))

    def unsafe(self):
        """Those of one point that take steps without padding."""

        def numbers(value):
            return {value} if isinstance(value, int | str) else set(value)

        return [
            call
            for call in self.seen
            if set(call[0]) == {1} and numbers(call[1]) != {1} and numbers(call[2]) in ({0}, {"valid"})
        ]


def calls_of(run):
    with Calls() as calls:
        run()
    return calls


def slopes(function, *tensors):
    """What a function gives, and its gradients, for a fixed gradient of the output."""
    tensors = [None if one is None else one.detach().clone().requires_grad_() for one in tensors]
    result = function(*tensors)
    result.backward(torch.arange(result.numel(), dtype=result.dtype).sin().view(result.shape))
    return [result.detach()] + [one.grad for one in tensors if one is not None]


@pytest.mark.parametrize("form", [LAST, torch.contiguous_format])
@pytest.mark.parametrize("biased", [False, True])
def test_strided_points_are_the_same_in_double_precision(biased, form):
    cases = itertools.product((1, 3), (1, 2, 6), (4, 7), (2, 3, (2, 1)), (1, 2))
    for count, channels, size, stride, groups in cases:
        images = torch.randn(count, groups * channels, size, size + 1, dtype=torch.float64)
        images = images.contiguous(memory_format=form)
        weight, bias = torch.randn(4, channels, 1, 1).double(), torch.randn(4).double() if biased else None
        wanted = slopes(lambda *given: F.conv2d(*given, stride, 0, 1, groups), images, weight, bias)  # noqa: B023
        actual = slopes(lambda *given: convolve(*given, stride, 0, 1, groups), images, weight, bias)  # noqa: B023
        for one, other in zip(actual, wanted, strict=True):
            if groups == 1:
                assert torch.equal(one, other)  # to the bit
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    assert calls_of(lambda: convolve(images, weight, bias, stride, groups=groups)).unsafe() == []


@pytest.mark.parametrize("form", [LAST, torch.contiguous_format])
@pytest.mark.parametrize("channels", [16, 32])  # enough for PyTorch's kernel to be safe
def test_strided_points_are_the_same_where_the_original_is_safe(channels, form):
    images = torch.randn(20, channels, 8, 8).contiguous(memory_format=form)
    weight, bias = torch.randn(24, channels, 1, 1).contiguous(memory_format=form), torch.randn(24)
    wanted = slopes(lambda *given: F.conv2d(*given, 2), images, weight, bias)
    actual = slopes(lambda *given: convolve(*given, 2), images, weight, bias)
    assert torch.equal(actual[0], wanted[0])
    assert all(torch.allclose(one, other, rtol=1e-5, atol=1e-4) for one, other in zip(actual, wanted, strict=True))
    assert [one.stride() for one in actual] == [one.stride() for one in wanted]  # what follows is as fast


@pytest.mark.parametrize(
    ("function", "safe", "size", "weight", "given"),
    [
        (F.conv1d, convolve, (3, 1, 8), (4, 1, 1), {"stride": 2}),
        (F.conv1d, convolve, (3, 2, 9), (4, 2, 1), {"stride": (3,), "padding": "valid"}),
        (F.conv2d, convolve, (2, 8, 8), (4, 2, 1, 1), {"stride": 2}),  # one image without a batch
        (F.conv2d, convolve, (3, 2, 8, 8), (4, 2, 1, 1), {"stride": 2, "dilation": 3}),
        (F.conv2d, convolve, (3, 2, 8, 8), (4, 2, 1, 1), {"stride": 2, "padding": 1}),
        (F.conv2d, convolve, (3, 2, 8, 1), (4, 2, 3, 1), {"stride": 2, "padding": 1}),
        (F.conv2d, convolve, (3, 2, 4, 3), (4, 2, 3, 3), {"stride": 1, "padding": 5}),
        (F.conv2d, convolve, (3, 2, 8, 8), (4, 2, 3, 3), {"stride": 2, "padding": (1, 0)}),
        (F.conv2d, convolve, (3, 2, 5, 2), (4, 2, 2, 2), {"padding": "same", "dilation": 3}),
        (F.conv2d, convolve, (3, 2, 5, 2), (4, 2, 2, 3), {"padding": "same", "dilation": (1, 3)}),
        (F.conv_transpose1d, convolve_transposed, (3, 2, 4), (2, 3, 1), {"stride": 2, "output_padding": 1}),
        (F.conv_transpose2d, convolve_transposed, (3, 2, 4, 4), (2, 3, 1, 1), {"stride": 2, "output_padding": 1}),
        (F.conv_transpose2d, convolve_transposed, (3, 2, 4, 4), (2, 3, 1, 1), {"stride": (2, 3)}),
        (F.conv_transpose2d, convolve_transposed, (3, 2, 4, 4), (2, 3, 1, 1), {"stride": 2, "groups": 2}),
        (F.conv_transpose2d, convolve_transposed, (3, 2, 4, 4), (2, 3, 1, 1), {"stride": 2, "padding": 1}),
        (F.conv_transpose2d, convolve_transposed, (3, 2, 4, 4), (2, 3, 3, 3), {"stride": 2}),
    ],
)
@pytest.mark.parametrize("biased", [False, True])
def test_every_form_of_a_call_gives_what_pytorch_does(function, safe, size, weight, given, biased):
    outputs = weight[1] * given.get("groups", 1) if safe is convolve_transposed else weight[0]
    images, kernel = torch.randn(size).double(), torch.randn(weight).double()
    bias = torch.randn(outputs).double() if biased else None
    wanted = slopes(lambda *tensors: function(*tensors, **given), images, kernel, bias)
    actual = slopes(lambda *tensors: safe(*tensors, **given), images, kernel, bias)
    for one, other in zip(actual, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    with SafeKernels():
        torch.testing.assert_close(function(images, kernel, bias, **given), wanted[0], rtol=1e-12, atol=1e-12)
        named = function(input=images, weight=kernel, bias=bias, **given)
    torch.testing.assert_close(named, wanted[0], rtol=1e-12, atol=1e-12)
    assert calls_of(lambda: safe(images, kernel, bias, **given)).unsafe() == []


@pytest.mark.parametrize(
    ("width", "kernel", "padding", "stride", "dilation"),
    [(1, 1, 1, 2, 1), (1, 1, 63, 2, 1), (3, 3, 5, 1, 1), (1, 3, 2, 1, 2), (2, 2, "same", 1, 3)],
)
def test_where_a_column_sees_no_pixel_zeros_are_laid_around_first(width, kernel, padding, stride, dilation):
    images = torch.randn(2, 3, 8, width).contiguous(memory_format=LAST)
    given = (torch.randn(4, 3, 3, kernel), torch.randn(4))
    calls = calls_of(lambda: convolve(images, *given, stride, padding, dilation))
    assert [call[2] for call in calls.seen] == [0]
    calls = calls_of(lambda: convolve(torch.randn(2, 3, 8, 8), *given, stride, 1 if kernel == 3 else 0, 1))
    assert [call[2] for call in calls.seen] == [1 if kernel == 3 else 0]  # and elsewhere PyTorch does it


def test_gradients_of_gradients_and_transforms_of_functions():
    images = torch.randn(2, 2, 4, 4, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(3, 2, 1, 1, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda *given: convolve(*given, stride=2), (images, weight))
    turned = torch.randn(2, 3, 1, 1, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda *given: convolve_transposed(*given, stride=2), (images, turned))
    several = torch.randn(3, 3, 2, 1, 1, dtype=torch.float64)
    actual = torch.func.vmap(lambda one: convolve(images, one, stride=2))(several)
    assert torch.allclose(actual, torch.stack([F.conv2d(images, one, stride=2) for one in several]))
    each = torch.func.vmap(torch.func.grad(lambda x: convolve(x, weight, stride=2).square().sum()))(images)
    plain = torch.func.vmap(torch.func.grad(lambda x: F.conv2d(x, weight, stride=2).square().sum()))(images)
    assert torch.allclose(each, plain)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [1, 2])
def test_instance_norms_have_the_right_gradient_whatever_the_memory_format(count, dtype):
    net = nn.Sequential(nn.InstanceNorm2d(6, affine=True), nn.Conv2d(6, 5, 3)).to(dtype)
    other = copy.deepcopy(net).to(memory_format=LAST)
    guard(other)
    images = torch.randn(count, 6, 5, 5, dtype=dtype)
    one, two = images.clone().requires_grad_(), images.contiguous(memory_format=LAST).requires_grad_()
    net(one).square().sum().backward()
    other(two).square().sum().backward()
    torch.testing.assert_close(two.grad, one.grad, rtol=1e-4, atol=1e-4)
    for mine, theirs in zip(net.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(theirs.grad, mine.grad, rtol=1e-4, atol=1e-4)
    with SafeKernels():  # and so does the function by itself
        F.instance_norm(images.contiguous(memory_format=LAST)).sum()


class Own(nn.Conv2d):
    """Somebody's own layer."""

    def forward(self, images):
        return 2 * super().forward(images)


class Functional(nn.Module):
    """Calls a convolution as a function."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3, 1, 1))

    def forward(self, images):
        return F.conv2d(images, self.weight, stride=2)


class Direct(nn.Module):
    """Goes past the hooks of its layer."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1, stride=2)

    def forward(self, images):
        return self.conv.forward(images)


class Stubborn(nn.Module):
    """Cannot run without values."""

    def __init__(self):
        super().__init__()
        self.inner = Functional()

    def forward(self, images):
        return self.inner(images) if float(images.sum()) < 1e9 else images


CASES = {
    "a plain layer": lambda: nn.Conv2d(3, 4, 1, stride=2),
    "a layer of one's own": lambda: Own(3, 4, 1, stride=(2, 1), padding="valid"),
    "with another padding": lambda: nn.Conv2d(3, 4, 1, stride=2, padding=1, padding_mode="reflect"),
    "in groups": lambda: nn.Conv2d(3, 3, 1, stride=2, groups=3),
    "transposed": lambda: nn.ConvTranspose2d(3, 4, 1, stride=2),
    "a function": Functional,
    "a layer called directly": Direct,
    "code that needs values": Stubborn,
}


@pytest.mark.parametrize("case", CASES)
def test_no_unsafe_call_is_left_in_a_guarded_model(case):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), CASES[case]())
    images = torch.randn(2, 3, 8, 8)
    names, wanted = list(model.state_dict()), model(images)
    assert calls_of(lambda: model(images)).unsafe() != []
    for example in ((images[:1],), (images[:1],)):  # twice is as once
        guard(model, *example)
    assert sum(len(module._forward_pre_hooks) for module in model.modules()) <= 2
    for safe in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert calls_of(lambda safe=safe: safe(images)).unsafe() == []
        torch.testing.assert_close(safe(images), wanted)
        assert list(safe.state_dict()) == names
    assert model.training


def test_only_what_may_be_unsafe_is_guarded():
    model = nn.Sequential(
        *(
            nn.Conv2d(3, 4, 1),
            nn.Conv2d(4, 4, 3, stride=2, padding=1),
            nn.Conv2d(4, 4, 1, stride=2, padding=1, bias=False),
        ),
        *(nn.Conv2d(4, 4, 3, padding=1, dilation=1), nn.ConvTranspose2d(4, 4, 2, stride=2), nn.BatchNorm2d(4)),
    )
    guard(model, torch.zeros(1, 3, 8, 8))
    assert not any(guarded(module) for module in model.modules())
    layer = nn.Conv2d(3, 3, 1, stride=2)
    guard(layer)
    assert guarded(layer)
    unguard(layer)
    assert not guarded(layer)
    assert not layer._forward_hooks


def test_an_error_inside_a_guarded_layer_leaves_nothing_behind():
    def refuse(*_):
        raise RuntimeError("no")

    for inner in (refuse, None):
        layer = nn.Conv2d(3, 3, 1, stride=2)
        if inner:
            layer.register_forward_pre_hook(refuse)
        guard(layer)
        with pytest.raises(RuntimeError):
            layer(torch.zeros(2, 3, 4, 4) if inner else torch.zeros(2, 5, 4, 4))
        calls = calls_of(lambda: F.conv2d(torch.zeros(1, 1, 2, 2), torch.zeros(1, 1, 1, 1), stride=2))
        assert len(calls.unsafe()) == 1  # nothing is replaced out here


def test_looking_for_unsafe_calls_draws_nothing_and_changes_nothing():
    class Noisy(Functional):
        def forward(self, images):
            return super().forward(F.dropout(images, 0.5) + torch.rand_like(images))

    model = nn.Sequential(Noisy().eval(), nn.Dropout())
    before, weight = torch.get_rng_state(), model[0].weight.detach().clone()
    guard(model, torch.zeros(1, 3, 8, 8))
    assert torch.equal(before, torch.get_rng_state())
    assert guarded(model[0])
    assert not guarded(model)
    assert torch.equal(model[0].weight, weight)
    assert (model.training, model[0].training, model[1].training) == (True, False, True)


@pytest.mark.parametrize("name", mostly_slow(sorted(MODELS), quick=7))
def test_our_own_nets_call_nothing_unsafe_but_through_layers(name):
    """So that they need not be searched: `_KNOWN_CODE` trusts them."""
    entry = MODELS[name]
    with torch.device("meta"):
        net = build(name)
    options = entry.options
    shape = entry.shape(options)
    example = torch.zeros(1, *shape, dtype=torch.long if entry.tokens else torch.float32, device="meta")
    guard(net)
    assert [module for module in _unsafe_callers(net, (example,), {}) if not guarded(module)] == []


def test_shapes_alone_pass_through_a_guarded_model():
    net = nn.Conv2d(3, 4, 1, stride=2)
    guard(net)
    with ShapeMode(), torch.no_grad():
        assert net.to("meta")(torch.zeros(2, 3, 8, 8, device="meta")).shape == (2, 4, 4, 4)
