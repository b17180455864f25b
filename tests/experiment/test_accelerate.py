"""The settings accelerate and threads: what they switch, what they leave, and where they are told."""

import json
import logging
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

import nestling
from nestling import events
from nestling.client.submodels import build
from nestling.data import Dataset
from nestling.engines import LocalEngine
from nestling.errors import ConfigError, RunError
from nestling.experiment.simulation import Overrides, simulate
from nestling.experiment.worker_factory import _rebuilt, worker_factory
from nestling.kernels import cross_entropy as entropies
from nestling.kernels import fused_sgd as descent
from nestling.kernels.grouped_layers import Grouped
from nestling.methods.parts import static_norms as norms
from nestling.settings import Evaluate, Experiment, FleetSettings, LocalTraining, Model

NARROW = {"depths": (1, 1, 1, 1), "widths": (8, 6, 6, 4)}


def noise(shape=(1, 8, 8), classes=10, count=60):
    random = torch.Generator().manual_seed(0)
    inputs = torch.randn(count, *shape, generator=random)
    targets = torch.arange(count) % classes
    return Dataset("noise", inputs, targets, inputs[:10], targets[:10], classes)


def residual(**given):
    """Clients whose models have strided 1×1 convolutions of few channels."""
    usual = {
        "model": Model(name="resnet8", options=NARROW),
        "fleet": FleetSettings(clients=6, per_round=6, levels="a-c"),
        "local": LocalTraining(lr=0.01, batch_size=10, epochs=1),
        "rounds": 1,
    }
    return Experiment(**usual | given)


def tiny(**given):
    """Two of them, who take two steps: threads wait for each other where other processes keep the cores busy."""
    fleet = FleetSettings(clients=2, per_round=2, levels="c")
    return residual(method="fedavg", fleet=fleet, evaluate=Evaluate(submodels=False), **given)


def test_plain_pytorch_does_the_work_where_accelerate_is_off(monkeypatch):
    def forbidden(name):
        def call(*_, **__):
            raise AssertionError(f"{name} is used although accelerate is off")

        return call

    monkeypatch.setattr(descent, "fused_sgd_", forbidden("the fused kernel"))
    monkeypatch.setattr(entropies._Entropies, "apply", forbidden("our cross-entropy"))
    monkeypatch.setattr(norms, "may_join", forbidden("joining of batches"))
    monkeypatch.setattr(Grouped, "__init__", forbidden("a grouped network"))
    config = residual(
        method="heterofl", accelerate="off", group_clients=3, model=Model(name="cnn", options={"widths": [4, 4]})
    )
    data = noise(classes=300, count=600)
    with pytest.raises(RunError, match="although"):
        nestling.run(config.with_settings(["accelerate=auto"]), dataset=data)
    result = nestling.run(config, dataset=data)
    assert result.summary["accelerate"] == "off"
    setup = result.simulation.setup
    layers = [one for one in build(setup, setup.submodel_plan(1.0), 1.0).modules() if isinstance(one, nn.Conv2d)]
    assert not any(one._forward_pre_hooks for one in layers)
    last = [one.weight.is_contiguous(memory_format=torch.channels_last) for one in layers if one.weight.shape[1] > 1]
    assert last
    assert not any(last)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["heterofl", "fedavg"])
def test_figures_agree_with_and_without_acceleration(method):
    results = [
        nestling.run(residual(method=method, accelerate=config, group_clients=3), dataset=noise())
        for config in ("auto", "off")
    ]
    one, other = (result.rounds[-1]["train_loss"] for result in results)
    assert one == pytest.approx(other, rel=1e-3)
    for name, tensor in results[1].state.items():
        torch.testing.assert_close(results[0].state[name], tensor, rtol=1e-2, atol=1e-3)


class Unsafe(TorchFunctionMode):
    """Counts strided 1×1 convolutions that reach PyTorch's kernels."""

    calls = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in (F.conv1d, F.conv2d) and not args[1].is_meta and not args[0].is_meta:
            stride = args[3] if len(args) > 3 else (kwargs or {}).get("stride", 1)
            steps = {stride} if isinstance(stride, int) else set(stride)
            self.calls += set(args[1].shape[2:]) == {1} and steps != {1}
        return func(*args, **(kwargs or {}))


@pytest.mark.slow
@pytest.mark.parametrize("accelerate", ["auto", "off"])
@pytest.mark.parametrize(
    ("method", "options", "group"),
    [("heterofl", {}, "off"), ("fedavg", {}, 3), ("fedmorph", {"every": 1, "epochs": 1, "batch": 10}, "off")],
)
def test_no_run_calls_an_unsafe_kernel(method, options, group, accelerate):
    config = residual(method=method, options=options, group_clients=group, accelerate=accelerate)
    if method == "fedmorph":
        config = config.with_settings(["data.public_share=0.3", "fleet.levels=a", "rounds=2"])
    with Unsafe() as unsafe:
        nestling.run(config, dataset=noise((1, 16, 16)))
    assert unsafe.calls == 0


def test_checking_a_model_calls_no_unsafe_kernel():
    net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Conv2d(4, 4, 1, stride=2), nn.Flatten(), nn.LazyLinear(3))
    images = torch.randn(4, 2, 8, 8)
    net(images)
    axes = nestling.trace(net, images)
    with Unsafe() as unsafe:
        report = nestling.check(net, axes, images)
    assert report.ok
    assert unsafe.calls == 0


def test_settings_are_kept_and_told(tmp_path):
    config = tiny(accelerate="off", threads=2)
    nestling.run(config, out=tmp_path / "run", dataset=noise(count=24))
    text = (tmp_path / "run" / "config.toml").read_text()
    assert 'accelerate = "off"' in text
    assert "threads = 2" in text
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["accelerate"], summary["threads"]) == ("off", 2)
    with pytest.raises(ConfigError, match="accelerate"):
        config.with_settings(["accelerate=fast"])
    with pytest.raises(ConfigError, match="threads"):
        config.with_settings(["threads=0"])


class Threads(nn.Linear):
    """Notes how many threads there are whenever it computes."""

    def forward(self, inputs):
        SEEN.add(torch.get_num_threads())
        return super().forward(inputs)


SEEN = set()


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_so_many_threads_compute_a_run_and_the_callers_are_restored(threads):
    SEEN.clear()
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), Threads(8, 10))
    torch.set_num_threads(3)
    with events.collect() as reported:
        nestling.run(tiny(threads=threads), model=model, dataset=noise(count=24))
    assert {threads} == SEEN
    assert torch.get_num_threads() == 3
    assert [(one.kind, one.level) for one in reported if one.kind == "threads"] == [("threads", logging.INFO)]


@pytest.mark.slow
@pytest.mark.parametrize("threads", [2, 4])
def test_gradients_are_right_with_several_threads(threads):
    """An unsafe kernel gives wrong ones: in 28 of 100 runs with four threads."""
    results = [nestling.run(tiny(threads=many), dataset=noise(count=24)) for many in (1, threads)]
    assert results[1].summary["threads"] == threads
    for name, tensor in results[0].state.items():
        torch.testing.assert_close(results[1].state[name], tensor, rtol=1e-2, atol=1e-3)


class Counting:
    """A worker that tells how many threads its process computes with, once a real one was built there."""

    def __init__(self, make):
        make()

    def __call__(self, job):
        return torch.get_num_threads()


@pytest.mark.slow
@pytest.mark.parametrize("rebuilt", [False, True])
def test_worker_processes_use_so_many_threads_too(rebuilt):
    overrides = Overrides(tiny(threads=2, workers=2), dataset=noise(count=24))
    make = partial(_rebuilt, overrides) if rebuilt else worker_factory(overrides, simulate(overrides))
    engine = LocalEngine(partial(Counting, make), workers=2)
    try:
        assert [reply.value for reply in engine.work([0, 1])] == [2, 2]
    finally:
        engine.close()
