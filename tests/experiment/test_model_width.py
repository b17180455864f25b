"""`model.width` below 1: nets by name are built at that width; what cannot be built is sliced, and reported."""

import math

import pytest
import torch
from torch import nn

import nestling
from nestling.cut import plan, resize
from nestling.data import from_arrays
from nestling.events import collect
from nestling.experiment.presets import PRESETS, find
from nestling.experiment.simulation import Overrides, simulate
from nestling.nets import build

IMAGES = {"mnist": (1, 28, 10), "cifar10": (3, 32, 10), "cifar100": (3, 32, 100)}
NARROW = sorted(
    {
        (e.model.name, repr(e.model.options), e.model.width): e.name
        for e in (preset() for preset in PRESETS.values())
        if e.model.width < 1 and e.data.name in IMAGES
    }.values()
)


def own(*sizes):
    inputs, targets = torch.zeros(1000, *sizes[:2], sizes[1]), torch.arange(1000) % sizes[2]
    return from_arrays(inputs, targets, (inputs, targets))


def started(experiment, **objects):
    """The model that a run starts from, and the events of building it."""
    with collect() as events:
        simulation = simulate(Overrides(experiment, **objects))
    return simulation.setup.model, [event.kind for event in events]


def test_level_e_starts_with_weights_of_its_own_scale():
    model, events = started(find("fedavg-mnist-iid-e"), dataset=own(1, 28, 10))
    assert events == []
    head = model.head.weight
    assert head.shape == (10, 32)
    bound = 1 / math.sqrt(32)  # 0.177; that of the whole model, with 512 features, is 0.044
    assert 0.95 * bound < head.abs().max() <= bound
    torch.testing.assert_close(head.std().item(), bound / math.sqrt(3), rtol=0.1, atol=0)


@pytest.mark.parametrize("name", NARROW)
def test_every_preset_is_built_and_not_sliced(name):
    experiment = find(name).with_settings(["data.partition=iid", "data.classes_per_client=0", "data.max_samples=0"])
    channels, size, classes = IMAGES[experiment.data.name]
    model, events = started(experiment, dataset=own(channels, size, classes))
    assert events == []
    whole = build(experiment.model.name, channels=channels, classes=classes, **experiment.model.options)
    axes = nestling.trace(whole, torch.zeros(2, channels, size, size))
    sliced = resize(whole, axes, plan(axes, experiment.model.width))
    assert {n: t.shape for n, t in model.state_dict().items()} == {n: t.shape for n, t in sliced.state_dict().items()}


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("transformer-nwp", ["model.options.width=32", "model.options.heads=2", "model.options.hidden=64"]),
        ("lstm", []),
    ],
)
def test_language_models_are_built_too(model, options):
    experiment = find("fedavg-words").with_settings([f"model.name={model}", *options, "model.width=0.25"])
    assert started(experiment)[1] == []


def test_a_narrow_net_is_the_net_with_these_options():
    narrow, _ = started(find("fedavg-digits").with_settings(["model.width=0.5", "model.options.widths=[8, 16]"]))
    same, _ = started(find("fedavg-digits").with_settings(["model.options.widths=[4, 8]"]))
    assert narrow.state_dict().keys() == same.state_dict().keys()
    assert all(torch.equal(tensor, same.state_dict()[name]) for name, tensor in narrow.state_dict().items())


class Own(nn.Sequential):
    """A model that knows one width."""

    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def test_own_models_and_loaded_weights_are_sliced_and_reported(tmp_path):
    experiment = find("fedavg-digits").with_settings(["model.width=0.5"])
    whole = Own()
    model, events = started(experiment, model=whole)
    assert events == ["model sliced"]
    assert torch.equal(model[3].weight, whole[3].weight[:, :16])

    by_factory = experiment.with_settings([f"model.name={__name__}:Own"])
    assert started(by_factory)[1] == ["model sliced"]

    net = build("cnn", widths=[8, 16])
    torch.save(net.state_dict(), tmp_path / "weights.pt")
    settings = ["model.options.widths=[8, 16]", f"model.weights={tmp_path / 'weights.pt'}"]
    model, events = started(experiment.with_settings(settings))
    assert events == ["model sliced"]
    assert torch.equal(model.head.weight, net.head.weight[:, :8])


def test_a_width_that_equals_the_number_of_classes_is_found():
    settings = ["model.options.widths=[10, 10]", "model.width=0.5"]
    model, events = started(find("fedavg-digits").with_settings(settings))
    assert (events, model.head.weight.shape) == ([], (10, 5))


def test_sizes_that_options_cannot_give_are_sliced():
    # heads of 3 units become 2, which two heads of a width of 3 have not
    options = ["model.name=vit-tiny", "model.options.width=6", "model.options.heads=2", "model.options.patch=4"]
    experiment = find("fedavg-digits").with_settings([*options, "model.options.depth=1", "model.width=0.5"])
    model, events = started(experiment)
    assert events == ["model sliced"]
    assert model.blocks[0].attention.body.attention.q.weight.shape == (4, 3)


def test_an_old_run_goes_on_and_loads_from_its_checkpoint(tmp_path, monkeypatch):
    """Runs of version 0.2 began with a slice: only their first round depends on that."""
    experiment = find("fedavg-small-digits").with_settings(["rounds=4", "checkpoint_every=2", "local.epochs=1"])
    with monkeypatch.context() as old:
        old.setattr("nestling.experiment.model._built_narrow", lambda *_: None)
        whole = nestling.run(experiment, out=tmp_path / "whole")
        nestling.run(experiment.with_settings(["rounds=2"]), out=tmp_path / "old")
        before = nestling.load(tmp_path / "old").submodel().state_dict()
    after = nestling.load(tmp_path / "old").submodel().state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    resumed = nestling.resume(tmp_path / "old", rounds=4)
    assert resumed.summary["final"] == whole.summary["final"]
    assert (tmp_path / "old" / "model.safetensors").read_bytes() == (
        tmp_path / "whole" / "model.safetensors"
    ).read_bytes()
