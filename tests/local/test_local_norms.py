"""Static batch norms against torch's own cumulative averages, in double precision."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from local_cases import inputs_of, learner_of, net_of
from torch import nn

from nestling.local.norms import averaged, batch_norms, static, statistics


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


def close(found, wanted):
    assert found.keys() == wanted.keys()
    for name in wanted:
        torch.testing.assert_close(found[name], wanted[name], rtol=1e-11, atol=1e-13)


def case_of(name, sizes):
    if name == "mixed":
        torch.manual_seed(0)
        return Mixed(), [torch.randn(size, 2, 9, dtype=torch.float64) for size in sizes]
    net, axes = net_of(name)
    return learner_of(net, axes, 0.5).model, [inputs_of(name, size, seed) for seed, size in enumerate(sizes)]


@pytest.mark.parametrize("name", ["cnn", "cnn1d", "preresnet18", "vgg16", "mixed"])
@pytest.mark.parametrize("after", ["fresh", "static", "asked before"])
def test_as_torch_averages(name, after):
    model, batches = case_of(name, [5, 5, 3, 4])
    wanted = cumulative(model, batches)
    if after != "fresh":
        static(model)
    if after == "asked before":
        statistics(model, [batch * 100 for batch in batches])
    sums, count = statistics(model, iter(batches))
    assert count == 4
    assert all(value.dtype == torch.float64 for value in sums.values())
    close(averaged([(sums, count)]), wanted)


@settings(deadline=None, derandomize=True, max_examples=12, database=None)
@given(st.lists(st.tuples(st.integers(2, 5), st.integers(0, 3)), min_size=1, max_size=8))
def test_it_does_not_matter_who_holds_which_batch(dealt):
    model, batches = case_of("cnn", [size for size, _ in dealt])
    whole = averaged([statistics(copy.deepcopy(model), batches)])
    parts = [
        statistics(model, [batch for batch, (_, owner) in zip(batches, dealt, strict=True) if owner == client])
        for client in range(4)
    ]
    assert sum(count for _, count in parts) == len(dealt)
    close(averaged(parts), whole)
    close(averaged(reversed(parts)), whole)


def test_what_was_there_before_does_not_matter():
    model, batches = case_of("preresnet18", [4, 4])
    wanted = statistics(copy.deepcopy(model), batches)[0]
    for _, norm in batch_norms(model):
        norm.running_mean.fill_(1e9)
        norm.running_var.fill_(1e9)
    close(statistics(model, batches)[0], wanted)


def test_everything_else_is_as_before():
    model, batches = case_of("mixed", [4, 3])
    before = copy.deepcopy(model.state_dict())
    random = torch.get_rng_state()
    sums, _ = statistics(model, batches)
    assert torch.equal(torch.get_rng_state(), random)  # no dropout
    assert {name.rpartition(".")[0] for name in sums} == {"layers.1", "layers.6"}
    counters = {f"layers.{k}.num_batches_tracked" for k in (1, 6)}
    for name, value in model.state_dict().items():
        if name not in sums and name not in counters:
            assert torch.equal(value, before[name]), name
    assert all(parameter.grad is None for parameter in model.parameters())


def test_static_norms_use_the_batch_in_training_and_their_statistics_in_tests():
    model, (batch, other) = case_of("cnn", [5, 5])
    told = averaged([statistics(model, [other])])
    model.load_state_dict(model.state_dict() | told)
    static(model)
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
    sums, count = statistics(learner_of(net, axes, 0.5).model, [inputs_of("vit-tiny")])
    assert (sums, count) == ({}, 1)
    assert averaged([(sums, count)]) == {}


def test_a_norm_that_is_used_twice_tells_of_both_uses():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.norm = nn.Linear(3, 3), nn.BatchNorm1d(3)

        def forward(self, x):
            return self.norm(self.layer(self.norm(x)))

    model, batches = Twice().double(), [torch.randn(4, 3, dtype=torch.float64) * 5 for _ in range(3)]
    wanted = cumulative(model, batches)
    close(averaged([statistics(model, batches)]), wanted)


@pytest.mark.parametrize("held", [True, False])
def test_asking_for_statistics_leaves_norms_as_they_were(held):
    """A model that was asked is trained again: static norms must stay static, others must keep their momentum."""
    model = Mixed()
    if held:
        static(model)
    before = [(norm.track_running_stats, norm.momentum) for _, norm in batch_norms(model)]
    statistics(model, [torch.randn(4, 2, 9, dtype=torch.float64)])
    assert [(norm.track_running_stats, norm.momentum) for _, norm in batch_norms(model)] == before
