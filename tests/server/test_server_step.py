"""The server's step against the papers' formulas, one coordinate at a time."""

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import nestling
from nestling.server.server_step import step
from nestling.settings import ServerSettings
from tests.methods.method_cases import Tied, net_of

ADAPTIVE = ["fedavgm", "fedadam", "fedyogi"]
HOW = st.builds(
    ServerSettings,
    optimizer=st.sampled_from(ADAPTIVE),
    lr=st.sampled_from([1.0, 0.1, 0.01]),
    beta1=st.sampled_from([0.0, 0.5, 0.9]),
    beta2=st.sampled_from([0.0, 0.9, 0.99]),
    tau=st.sampled_from([1e-3, 1e-1]),
)


def formula(config, old, change, first, second):
    """One coordinate: the new weight, and both momenta."""
    if config.optimizer == "fedavgm":
        first = config.beta1 * first + change
        return old + config.lr * first, first, second
    first = config.beta1 * first + (1 - config.beta1) * change
    if config.optimizer == "fedadam":
        second = config.beta2 * second + (1 - config.beta2) * change**2
    else:
        second = second - (1 - config.beta2) * change**2 * ((second > change**2) - (second < change**2))
    return old + config.lr * first / (math.sqrt(second) + config.tau), first, second


@settings(deadline=None, derandomize=True, max_examples=60, database=None)
@given(HOW, st.integers(0, 1000), st.integers(1, 5))
def test_rounds_as_the_papers_write_them(config, seed, rounds):
    random = torch.Generator().manual_seed(seed)
    state = {"w": torch.randn(2, 3, generator=random, dtype=torch.float64), "mean": torch.zeros(2)}
    memory = {}
    expected = [(value, 0.0, config.tau**2) for value in state["w"].flatten().tolist()]
    for round in range(rounds):
        held = torch.rand(2, 3, generator=random) < 0.6
        weights = held * torch.rand(2, 3, generator=random, dtype=torch.float64)
        trained = state["w"] + torch.randn(2, 3, generator=random, dtype=torch.float64) * 0.3
        merged = {"w": torch.where(weights > 0, trained, state["w"]), "mean": torch.full((2,), float(round))}
        for k, (old, first, second) in enumerate(expected):
            if weights.flatten()[k] > 0:
                change = merged["w"].flatten()[k].item() - old
                expected[k] = formula(config, old, change, first, second)
        inputs = copy.deepcopy((state, merged, memory))
        new, after = step(
            config, state, merged, gathered={"w": weights}.__getitem__, memory=memory, trained=frozenset({"w"})
        )
        for given_, before in zip((state, merged, memory), inputs, strict=True):  # nothing is changed in place
            assert given_.keys() == before.keys()
            assert all(torch.equal(given_[name], before[name]) for name in before)
        for name, value in memory.items():  # untouched: bit for bit
            assert torch.equal(after[name][weights == 0], value[weights == 0])
        assert torch.equal(new["w"][weights == 0], state["w"][weights == 0])
        assert torch.equal(new["mean"], merged["mean"])
        state, memory = new, after
        torch.testing.assert_close(state["w"].flatten().tolist(), [value for value, _, _ in expected])
    kinds = ("first",) if config.optimizer == "fedavgm" else ("first", "second")
    assert set(memory) == {f"w/{kind}" for kind in kinds}
    torch.testing.assert_close(memory["w/first"].flatten().tolist(), [first for _, first, _ in expected])


def merge(net, axes, clients):
    """What clients of some widths return when every weight grew by a number of their own."""
    state = {name: tensor.detach().clone() for name, tensor in net.state_dict().items()}
    tally = nestling.Tally(axes, state)
    for ratio, growth in clients:
        plan = nestling.plan(axes, ratio)
        slice_ = nestling.extract(axes, plan, state)
        tally.add({name: t + growth if t.is_floating_point() else t for name, t in slice_.items()}, plan)
    return state, tally


@pytest.mark.parametrize("optimizer", ADAPTIVE)
def test_with_a_real_merge_what_nobody_held_stays(optimizer):
    net, axes = net_of("preresnet18")
    parameters = frozenset(name for name, _ in net.named_parameters())
    state, tally = merge(net, axes, [(0.5, 0.25), (0.25, 0.5)])
    merged = tally.value()
    first = {f"{name}/first": torch.full_like(state[name], 7.0) for name in parameters}
    second = {f"{name}/second": torch.full_like(state[name], 3.0) for name in parameters}
    memory = first if optimizer == "fedavgm" else first | second
    config = ServerSettings(optimizer=optimizer, lr=0.1)
    new, after = step(config, state, merged, gathered=tally.weights, memory=memory, trained=parameters)
    assert new.keys() == state.keys()
    assert after.keys() == memory.keys()
    for name, value in new.items():
        assert value.dtype == state[name].dtype
        assert value.shape == state[name].shape
        away = tally.weights(name) == 0
        if name in parameters:
            assert torch.equal(value[away], state[name][away])
            assert (value[~away] != merged[name][~away]).all()
            for kind in ("first", "second"):
                if f"{name}/{kind}" in memory:
                    assert torch.equal(after[f"{name}/{kind}"][away], memory[f"{name}/{kind}"][away])
                    assert (after[f"{name}/{kind}"][~away] != memory[f"{name}/{kind}"][~away]).all()
        else:
            assert torch.equal(value, merged[name])


def test_averaging_takes_what_was_merged_and_remembers_nothing():
    net, axes = net_of("cnn")
    state, tally = merge(net, axes, [(0.5, 1.0)])
    merged = tally.value()
    new, memory = step(ServerSettings(), state, merged, gathered=tally.weights, memory={}, trained=frozenset())
    assert memory == {}
    assert new is not merged
    assert all(torch.equal(new[name], merged[name]) for name in merged)


@pytest.mark.parametrize("optimizer", ADAPTIVE)
def test_a_round_that_changed_nothing_changes_nothing(optimizer):
    net, axes = net_of("cnn")
    state, tally = merge(net, axes, [(1.0, 0.0), (0.5, 0.0)])
    parameters = frozenset(name for name, _ in net.named_parameters())
    config = ServerSettings(optimizer=optimizer)
    new, memory = step(config, state, tally.value(), gathered=tally.weights, memory={}, trained=parameters)
    assert all(torch.equal(new[name], state[name]) for name in state)
    assert not any(memory[name].any() for name in memory if name.endswith("/first"))


@pytest.mark.parametrize("optimizer", ADAPTIVE)
def test_tied_tensors_stay_tied(optimizer):
    net = Tied()
    axes = nestling.trace(net, torch.zeros(2, 3, dtype=torch.long))
    parameters = frozenset(name for name, _ in net.named_parameters(remove_duplicate=False))  # as run.setting does
    state, tally = merge(net, axes, [(1.0, 0.5)])
    config = ServerSettings(optimizer=optimizer, lr=0.1)
    new, _ = step(config, state, tally.value(), gathered=tally.weights, memory={}, trained=parameters)
    assert torch.equal(new["head.weight"], new["token.weight"])


@pytest.mark.parametrize("optimizer", ["fedadam", "fedyogi"])
def test_no_setting_makes_weights_that_are_no_numbers(optimizer):
    old = {"w": torch.ones(3)}
    config = ServerSettings(optimizer=optimizer, tau=0.0)
    new, _ = step(config, old, old, gathered=lambda _: torch.ones(3), memory={}, trained=frozenset({"w"}))
    assert torch.isfinite(new["w"]).all()
