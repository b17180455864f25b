"""`cost` against closed forms, against torch's own counter on a real run, and against a real training step."""

import pytest
import torch
from hypothesis import given, settings
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

import nestling
from nestling import Plan, cost, submodel
from nestling.nets import build, example
from tests.cut.cut_cases import LAWS, NETS, PLANS, RESIDUAL, Through, case, dropped_names, random_plan, state_of
from tests.quick import mostly_slow

IMAGES = torch.randn(4, 6, 10, 10, generator=torch.Generator().manual_seed(0))


def cost_of(net, x, width=1.0, **options):
    axes = nestling.trace(net, x)
    return cost(net, axes, nestling.plan(axes, width), x, **options)


def real_macs(model, *example):
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        model(*example)
    return counter.get_total_flops() // 2


# ---- against the real sub-model

# torch's counter knows no fused recurrent layers and no fused attention of the CPU: those have closed forms below
UNCOUNTED = ("lstm", "gru", "vit", "transformer", "attention", "fused")


@pytest.mark.parametrize("name", mostly_slow(NETS, quick=5))
@settings(LAWS, max_examples=4)
@given(which=PLANS)
def test_cost_is_that_of_the_real_submodel(name, which):
    it = case(name)
    plan = random_plan(it.axes, *which)
    small = submodel(it.model, it.axes, plan)
    costs = cost(it.model, it.axes, plan, it.example)
    assert costs.parameters == sum(parameter.numel() for parameter in small.parameters())
    unique = {tensor.data_ptr(): tensor.nbytes for tensor in small.state_dict().values()}
    assert costs.bytes == sum(unique.values())
    gradients = sum(parameter.nbytes for parameter in small.parameters())
    assert costs.memory == costs.bytes + gradients + costs.activations
    if not any(word in name for word in UNCOUNTED):
        assert costs.macs == real_macs(small, it.example)


def test_bytes_follow_the_dtype():
    it = case("flatten")
    half, single, double = (
        cost(submodel(it.model, it.axes, Plan()).to(dtype), it.axes, Plan(), it.example.to(dtype))
        for dtype in (torch.bfloat16, torch.float32, torch.float64)
    )
    assert half.parameters == single.parameters == double.parameters
    assert (2 * half.bytes, single.bytes * 2) == (single.bytes, double.bytes)
    assert half.macs == single.macs == double.macs
    assert half.activations < single.activations < double.activations


def test_a_frozen_parameter_is_sent_but_has_no_gradient():
    it = case("flatten")
    net = submodel(it.model, it.axes, Plan())
    before = cost(net, it.axes, Plan(), it.example)
    net[3].requires_grad_(False)
    after = cost(net, it.axes, Plan(), it.example)
    assert (after.parameters, after.bytes) == (before.parameters, before.bytes)
    saved = sum(parameter.nbytes for parameter in net[3].parameters())
    assert after.memory - after.activations == before.memory - before.activations - saved


# ---- arithmetic


@pytest.mark.parametrize("width", [1.0, 0.5, 0.25])
def test_macs_of_linear_layers(width):
    hidden = int(16 * width)
    costs = cost_of(nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)), torch.zeros(5, 7, 6), width)
    assert costs.macs == 5 * 7 * (6 * hidden + hidden * 3)


@pytest.mark.parametrize("width", [1.0, 0.5])
@pytest.mark.parametrize(
    ("stride", "padding", "kernel", "dilation"), [(1, 0, 3, 1), (2, 1, 3, 1), (3, 2, 5, 1), (1, 2, 3, 2)]
)
def test_macs_of_convolutions(width, stride, padding, kernel, dilation):
    net = nn.Sequential(
        nn.Conv2d(6, 8, kernel, stride, padding, dilation), nn.ReLU(), nn.Conv2d(8, 4, 1), nn.Flatten(), nn.Identity()
    )
    side = (10 + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
    hidden = int(8 * width)
    assert cost_of(net, IMAGES, width).macs == 4 * side**2 * (6 * hidden * kernel**2 + hidden * 4)


@pytest.mark.parametrize("groups", [2, 4])
@pytest.mark.parametrize("width", [1.0, 0.5])
def test_macs_of_grouped_convolutions(groups, width):
    net = nn.Sequential(nn.Conv2d(6, 16, 1), nn.Conv2d(16, 16, 3, groups=groups), nn.Conv2d(16, 5, 1))
    hidden = int(16 * width)
    inner = hidden * (hidden // groups) * 9
    assert cost_of(net, IMAGES, width).macs == 4 * (100 * 6 * hidden + 64 * inner + 64 * hidden * 5)


@pytest.mark.parametrize("width", [1.0, 0.5])
def test_macs_of_a_depthwise_convolution(width):
    net = nn.Sequential(nn.Conv2d(6, 16, 1), nn.Conv2d(16, 16, 3, groups=16), nn.Conv2d(16, 5, 1))
    hidden = int(16 * width)
    assert cost_of(net, IMAGES, width).macs == 4 * (100 * 6 * hidden + 64 * 9 * hidden + 64 * hidden * 5)


@pytest.mark.parametrize("width", [1.0, 0.5])
def test_macs_of_attention(width):
    """Projections, and per head two products of length² · head width, whichever kernel torch would take."""
    options = {"width": 16, "heads": 4, "hidden": 24, "depth": 3, "vocabulary": 30, "positions": 9}
    net, (ids,) = build("transformer-mlm", **options), example("transformer-mlm", batch=5, **options)
    e, inner, f = int(16 * width), 4 * int(4 * width), int(24 * width)
    tokens = 5 * 9
    layer = tokens * (4 * e * inner + 2 * e * f) + 2 * 5 * 9**2 * inner
    assert cost_of(net, ids, width).macs == 3 * layer + tokens * (e * e + e * 30)


@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn"])
@pytest.mark.parametrize("width", [1.0, 0.5])
def test_macs_of_recurrent_layers(kind, width):
    gates = {"lstm": 4, "gru": 3, "rnn": 1}[kind]
    layer = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}[kind](3, 8, batch_first=True)
    hidden = int(8 * width)
    costs = cost_of(Through(layer, nn.Linear(8, 2)), torch.zeros(5, 6, 3), width)
    assert costs.macs == 5 * 6 * (gates * hidden * (3 + hidden) + hidden * 2)


def test_macs_of_wide_nets_scale_with_the_square_of_the_width():
    with torch.device("meta"):
        net = build("resnet18")
    (x,) = example("resnet18", batch=1)
    axes = nestling.trace(net, x)
    whole, half = (cost(net, axes, nestling.plan(axes, width), x).macs for width in (1.0, 0.5))
    assert 0.25 < half / whole < 0.26  # the stem and the head shrink on one side only


@pytest.mark.parametrize("name", ["mlp", "cnn", "transformer-mlm", "resnet18"])
def test_batch_scales_arithmetic_and_activations_and_nothing_else(name):
    it = case(name)
    one, two, four, eight = (cost(it.model, it.axes, Plan(), it.example, batch=batch) for batch in (1, 2, 4, 8))
    assert two == cost(it.model, it.axes, Plan(), it.example)
    assert [two.macs, four.macs, eight.macs] == [one.macs * 2, one.macs * 4, one.macs * 8]
    assert one.bytes == eight.bytes
    assert one.parameters == eight.parameters
    # a straight line: what does not grow with the batch is small
    assert eight.activations - four.activations == 2 * (four.activations - two.activations)
    assert four.activations - two.activations > 0.45 * four.activations


def test_batch_leaves_what_has_no_rows_alone():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.enter, self.head = nn.Linear(4, 8), nn.Linear(8, 3)

        def forward(self, x, scale):
            return self.head(self.enter(x) * scale)

    net, x, scale = Scaled(), torch.zeros(2, 4), torch.tensor(2.0)
    axes = nestling.trace(net, x, scale=scale)
    assert cost(net, axes, Plan(), x, scale=scale, batch=6).macs == 6 * (32 + 24)


# ---- blocks


@pytest.mark.parametrize("name", mostly_slow([*RESIDUAL, "steps"], quick=4))
def test_a_dropped_block_costs_nothing(name):
    it = case(name)
    whole = cost(it.model, it.axes, Plan(), it.example)
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        it.model(it.example)
    root = type(it.model).__name__
    blocks = list(it.axes.blocks)
    for block in {blocks[0], blocks[len(blocks) // 2], blocks[-1]}:
        members = it.axes.blocks[block]
        plan = Plan(blocks=[other for other in blocks if other != block])
        costs = cost(it.model, it.axes, plan, it.example)
        state = it.model.state_dict()
        assert whole.bytes - costs.bytes == sum(state[key].nbytes for key in members)
        parameters = dict(it.model.named_parameters())
        assert whole.parameters - costs.parameters == sum(parameters[k].numel() for k in members if k in parameters)
        assert costs.activations <= whole.activations  # the peak may be reached elsewhere
        assert costs.macs < whole.macs
        if "resnet" in name:  # the body is all of its arithmetic; torch counts it by module
            body = counter.get_flop_counts()[f"{root}.{block}.body"]
            assert whole.macs - costs.macs == sum(body.values()) // 2


@pytest.mark.parametrize("name", mostly_slow(RESIDUAL, quick=4))
def test_without_any_block_only_the_frame_is_left(name):
    it = case(name)
    plan = Plan(blocks=[])
    costs = cost(it.model, it.axes, plan, it.example)
    gone = dropped_names(it.axes, plan)
    state = it.model.state_dict()
    assert costs.bytes == sum(tensor.nbytes for key, tensor in state.items() if key not in gone)
    whole = cost(it.model, it.axes, Plan(), it.example)
    assert 0 < costs.macs < whole.macs
    assert 0 < costs.activations < whole.activations


# ---- memory of a real training step


def inputs_and_saved(model, x):
    """Bytes that autograd holds between forward and backward, beside the model's own tensors."""
    own = {tensor.untyped_storage().data_ptr() for tensor in [*model.parameters(), *model.buffers()]}
    held = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            held[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model(x).sum()
    total = sum(held.values())
    loss.backward()
    return total


def peak_of_a_step(model, x):
    """The most bytes the allocator had given out at once during a training step, as torch's profiler saw it."""
    model.zero_grad(set_to_none=True)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        model(x).sum().backward()
    events = [event for event in watched.profiler.kineto_results.events() if event.name() == "[memory]"]
    assert events
    live = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak


def measured(name, batch):
    options = {"mlp": {"size": 8, "widths": (64, 32)}, "cnn": {"widths": (8, 16, 16, 32)}}[name]
    torch.manual_seed(0)
    net = build(name, **options)
    (x,) = example(name, batch=batch, **options)
    return net, nestling.trace(net, x), x


@pytest.mark.parametrize("width", [1.0, 0.5])
@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_activations_hold_at_least_what_autograd_saves(name, width):
    net, axes, x = measured(name, 16)
    plan = nestling.plan(axes, width)
    costs = cost(net, axes, plan, x).activations
    saved = inputs_and_saved(submodel(net, axes, plan), x)
    assert costs >= saved
    assert costs < 2 * saved  # in backward, the gradients of one or two layers come on top


@pytest.mark.parametrize("width", [1.0, 0.5])
@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_activations_are_near_what_the_allocator_gives_out(name, width):
    """Within 15 %: the kernels of the CPU take some room of their own, which nobody can know beforehand."""
    net, axes, x = measured(name, 64)
    plan = nestling.plan(axes, width)
    small = submodel(net, axes, plan)
    peak = peak_of_a_step(small, x)
    gradients = sum(parameter.nbytes for parameter in small.parameters())
    costs = cost(net, axes, plan, x).activations
    # the profiler did not see the input being made; gradients are there in part when the peak is reached
    assert 0.85 * (peak - gradients) <= costs <= 1.15 * (peak + x.nbytes)


@pytest.mark.parametrize(("first", "shape"), [(nn.Identity(), (16, 32)), (nn.Flatten(1), (16, 4, 8))])
def test_the_input_counts_whatever_the_first_layer_does_with_it(first, shape):
    """An input that autograd saves is held during the step, whether a view of it is taken first or not."""
    x = torch.zeros(shape)
    net = nn.Sequential(first, nn.Linear(32, 4), nn.ReLU(), nn.Linear(4, 2))
    axes = nestling.trace(net, x)
    assert cost(net, axes, Plan(), x).activations >= inputs_and_saved(net, x) >= x.nbytes
    assert cost(net, axes, Plan(), x[:2], batch=16) == cost(net, axes, Plan(), x)


def test_evaluation_of_the_cost_leaves_no_trace():
    it = case("cnn")
    before = state_of(it)
    net = submodel(it.model, it.axes, Plan()).train()
    net.load_state_dict(before)
    torch.manual_seed(0)
    untouched = torch.rand(3)
    torch.manual_seed(0)
    cost(net, it.axes, nestling.plan(it.axes, 0.5), it.example)
    assert torch.equal(torch.rand(3), untouched)
    assert all(torch.equal(net.state_dict()[key], tensor) for key, tensor in before.items())
    assert all(parameter.grad is None for parameter in net.parameters())
    assert net.training


@pytest.mark.parametrize("name", ["cnn", "resnet18", "transformer-nwp", "lstm"])
def test_a_model_without_values_costs_the_same(name):
    it = case(name)
    bare = nestling.resize(it.model, it.axes, Plan())
    assert next(bare.parameters()).is_meta
    plan = nestling.plan(it.axes, 0.5)
    assert cost(bare, it.axes, plan, it.example) == cost(it.model, it.axes, plan, it.example)
    assert cost(bare, it.axes, plan, it.example.to("meta")) == cost(it.model, it.axes, plan, it.example)
