"""Static batch norms against torch's own cumulative averages, in double precision."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from nestling.kernels.batch_norms import batch_norms
from nestling.methods.parts.static_norms import make_static, mean_statistics, norm_sums
from tests.client.training_cases import inputs_of, net_of
from tests.harness import slice_of


class Mixed(nn.Module):
    """Norms of every kind, and dropout, whose noise would show in what the norms see."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(2, 6, 3),
            nn.BatchNorm1d(6, momentum=0.3),
            nn.Dropout(0.5),
            nn.InstanceNorm1d(6, affine=True, track_running_stats=True),
            nn.Conv1d(6, 6, 3),
            nn.GroupNorm(2, 6),
            nn.BatchNorm1d(6, affine=False, momentum=None),
            nn.BatchNorm1d(6, track_running_stats=False),
        ).double()

    def forward(self, x):
        return self.layers(x).mean(-1)


def cumulative(model, batches):
    """What torch's norms say when they average over all batches by themselves."""
    twin = copy.deepcopy(model).eval()
    norms = {
        name: module
        for name, module in twin.named_modules()
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d) and module.running_mean is not None
    }
    for norm in norms.values():
        norm.track_running_stats, norm.momentum = True, None
        norm.reset_running_stats()
        norm.train()
    with torch.no_grad():
        for batch in batches:
            twin(batch)
    return {
        f"{name}.{what}": getattr(norm, what)
        for name, norm in norms.items()
        for what in ("running_mean", "running_var")
    }


def close(actual, wanted):
    assert actual.keys() == wanted.keys()
    for name in wanted:
        torch.testing.assert_close(actual[name], wanted[name], rtol=1e-11, atol=1e-13)


def case_of(name, sizes):
    if name == "mixed":
        torch.manual_seed(0)
        return Mixed(), [torch.randn(size, 2, 9, dtype=torch.float64) for size in sizes]
    net, axes = net_of(name)
    return slice_of(net, axes, 0.5).model, [inputs_of(name, size, seed) for seed, size in enumerate(sizes)]


@pytest.mark.parametrize("name", ["cnn", "cnn1d", "preresnet18", "vgg16", "mixed"])
@pytest.mark.parametrize("after", ["fresh", "static", "asked before"])
def test_as_torch_averages(name, after):
    model, batches = case_of(name, [5, 5, 3, 4])
    wanted = cumulative(model, batches)
    if after != "fresh":
        make_static(model)
    if after == "asked before":
        norm_sums(model, [batch * 100 for batch in batches])
    sums, count = norm_sums(model, iter(batches))
    assert count == 4
    assert all(value.dtype == torch.float64 for value in sums.values())
    close(mean_statistics([(sums, count)]), wanted)


@settings(deadline=None, derandomize=True, max_examples=12, database=None)
@given(st.lists(st.tuples(st.integers(2, 5), st.integers(0, 3)), min_size=1, max_size=8))
def test_it_does_not_matter_who_holds_which_batch(dealt):
    model, batches = case_of("cnn", [size for size, _ in dealt])
    whole = mean_statistics([norm_sums(copy.deepcopy(model), batches)])
    parts = [
        norm_sums(model, [batch for batch, (_, owner) in zip(batches, dealt, strict=True) if owner == client])
        for client in range(4)
    ]
    assert sum(count for _, count in parts) == len(dealt)
    close(mean_statistics(parts), whole)
    close(mean_statistics(reversed(parts)), whole)


def test_what_was_there_before_does_not_matter():
    model, batches = case_of("preresnet18", [4, 4])
    wanted = norm_sums(copy.deepcopy(model), batches)[0]
    for _, norm in batch_norms(model):
        norm.running_mean.fill_(1e9)
        norm.running_var.fill_(1e9)
    close(norm_sums(model, batches)[0], wanted)


def test_everything_else_is_as_before():
    model, batches = case_of("mixed", [4, 3])
    before = copy.deepcopy(model.state_dict())
    random = torch.get_rng_state()
    sums, _ = norm_sums(model, batches)
    assert torch.equal(torch.get_rng_state(), random)  # no dropout
    assert {name.rpartition(".")[0] for name in sums} == {"layers.1", "layers.6"}
    counters = {f"layers.{k}.num_batches_tracked" for k in (1, 6)}
    for name, value in model.state_dict().items():
        if name not in sums and name not in counters:
            assert torch.equal(value, before[name]), name
    assert all(parameter.grad is None for parameter in model.parameters())


def test_static_norms_use_the_batch_in_training_and_their_statistics_in_tests():
    model, (batch, other) = case_of("cnn", [5, 5])
    statistics = mean_statistics([norm_sums(model, [other])])
    model.load_state_dict(model.state_dict() | statistics)
    make_static(model)
    plain = copy.deepcopy(model)
    for _, norm in batch_norms(plain):
        norm.track_running_stats = True
    state = copy.deepcopy(model.state_dict())
    model.train(), plain.train()
    assert torch.equal(model(batch), copy.deepcopy(plain)(batch))
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    model.eval(), plain.eval()
    assert torch.equal(model(batch), plain(batch))
    with torch.no_grad():
        for _, norm in batch_norms(model):
            norm.running_mean += 1
    assert not torch.allclose(model(batch), plain(batch))


def test_a_model_without_batch_norms_tells_nothing():
    net, axes = net_of("vit-tiny")
    sums, count = norm_sums(slice_of(net, axes, 0.5).model, [inputs_of("vit-tiny")])
    assert (sums, count) == ({}, 1)
    assert mean_statistics([(sums, count)]) == {}


def test_a_norm_that_is_used_twice_tells_of_both_uses():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.norm = nn.Linear(3, 3), nn.BatchNorm1d(3)

        def forward(self, x):
            return self.norm(self.layer(self.norm(x)))

    model, batches = Twice().double(), [torch.randn(4, 3, dtype=torch.float64) * 5 for _ in range(3)]
    wanted = cumulative(model, batches)
    close(mean_statistics([norm_sums(model, batches)]), wanted)


@pytest.mark.parametrize("held", [True, False])
def test_asking_for_statistics_leaves_norms_as_they_were(held):
    """A model that was asked is trained again: static norms must stay static, others must keep their momentum."""
    model = Mixed()
    if held:
        make_static(model)
    before = [(norm.track_running_stats, norm.momentum) for _, norm in batch_norms(model)]
    norm_sums(model, [torch.randn(4, 2, 9, dtype=torch.float64)])
    assert [(norm.track_running_stats, norm.momentum) for _, norm in batch_norms(model)] == before


class Counted(nn.Module):
    """A net of norms and something between them; it counts its forwards."""

    def __init__(self, between):
        super().__init__()
        torch.manual_seed(1)
        self.first, self.second = nn.BatchNorm1d(6), nn.BatchNorm1d(6)
        self.linear, self.between, self.forwards = nn.Linear(6, 6), between, []
        self.double()

    def forward(self, x):
        self.forwards.append(len(x))
        return self.second(self.between(self.linear(self.first(x))))


def steps_first(x):
    """Rows of a batch in another order than its samples'."""
    return x.reshape(-1, 2, 6).transpose(0, 1).reshape(-1, 6)


@pytest.mark.parametrize(
    ("between", "together"),
    [
        (torch.relu, True),
        (lambda x: x.reshape(-1, 3, 2).flip(1).reshape(-1, 6), True),  # mixes what is one sample's
        (lambda x: x * x.square().mean(0), False),
        (lambda x: x + x.roll(1, 0), False),
        (lambda x: x.softmax(0), False),
        (lambda x: x[: len(x) // 2 + 1], False),  # of an odd number of samples, which no two batches share evenly
        (lambda x: x.reshape(5 if len(x) == 5 else 4, 6), False),  # fails where there are more
        (lambda x: x + torch.randn_like(x), False),
    ],
)
def test_batches_run_together_only_where_samples_do_not_meet(between, together):
    model, batches = Counted(between), [torch.randn(4, 6, dtype=torch.float64) for _ in range(3)]
    torch.manual_seed(2)
    actual = norm_sums(model, batches)
    ran = model.forwards[:]
    torch.manual_seed(2)
    wanted = cumulative(model, batches)
    close(mean_statistics([actual]), wanted)
    assert actual[1] == 3
    assert ran == ([12] if together else [4, 4, 4])


def test_rows_that_leave_their_batch_are_not_told_of_together():
    model, batches = Counted(steps_first), [torch.randn(4, 6, dtype=torch.float64) for _ in range(2)]
    wanted = cumulative(model, batches)
    model.forwards.clear()
    close(mean_statistics([norm_sums(model, batches)]), wanted)
    assert model.forwards == [4, 4]


def test_samples_that_are_all_alike_do_not_hide_that_they_meet():
    model = Counted(lambda x: x * x.square().mean(0))
    assert norm_sums(model, [torch.zeros(4, 6, dtype=torch.float64)] * 2)[1] == 2  # found out here …
    batches = [torch.randn(4, 6, dtype=torch.float64) for _ in range(2)]
    close(mean_statistics([norm_sums(model, batches)]), cumulative(model, batches))  # … and held against it here


def test_weights_of_zero_do_not_hide_that_samples_meet():
    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Parameter(torch.zeros(6))

        def forward(self, x):
            return x + self.gate * x.square().mean(0)

    model = Counted(Gated()).double()
    batches = [torch.randn(4, 6, dtype=torch.float64) ** k for k in (1, 2, 3)]
    norm_sums(model, batches)
    with torch.no_grad():
        model.between.gate.fill_(1.0)
    close(mean_statistics([norm_sums(model, batches)]), cumulative(model, batches))


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_weights_that_are_no_numbers_do_not_decide(value):
    model = Counted(torch.relu)
    with torch.no_grad():
        model.linear.weight[0] = value
    norm_sums(model, [torch.randn(4, 6, dtype=torch.float64)] * 2)
    assert model.forwards == [8]


def test_a_model_is_tried_once_and_left_alone():
    model = Counted(torch.relu)
    before = copy.deepcopy(model.state_dict())
    norm_sums(model, [torch.randn(3, 6, dtype=torch.float64)] * 2)
    norm_sums(model, [torch.randn(3, 6, dtype=torch.float64)] * 2)
    assert model.forwards == [6, 6]
    for name in ("first.weight", "linear.weight", "second.bias"):
        assert torch.equal(model.state_dict()[name], before[name])
    assert all("forward" not in vars(norm) for _, norm in batch_norms(model))


def test_large_batches_run_one_by_one():
    model = Counted(torch.relu)
    norm_sums(model, [torch.randn(60, 6, dtype=torch.float64)] * 2)
    norm_sums(model, [torch.randn(30, 6, dtype=torch.float64)] * 4)
    assert model.forwards == [60, 60, 90, 30]


@pytest.mark.parametrize("name", ["cnn", "cnn1d", "preresnet18", "vgg16"])
def test_the_nets_run_batches_together(name):
    net, axes = net_of(name)
    model, sizes = slice_of(net, axes, 0.5).model, []
    model.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    norm_sums(model, [inputs_of(name, 3, seed) for seed in range(4)])
    assert sizes == [3, 3, 6, 12]  # tried on a copy, and then all of them


def test_a_forward_that_fails_leaves_norms_as_they_were():
    def fail(x):
        raise ValueError("no")

    model = Counted(fail)
    with pytest.raises(ValueError, match="no"):
        norm_sums(model, [torch.randn(3, 6, dtype=torch.float64)] * 2)
    assert all("forward" not in vars(norm) and norm.momentum == 0.1 for _, norm in batch_norms(model))
