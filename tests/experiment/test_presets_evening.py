"""Presets for an evening: whole data sets, the rows that decide claims, and a bounded amount of work."""

import math

import pytest
import torch

from nestling.data import from_arrays
from nestling.errors import ConfigError
from nestling.experiment.presets import PRESETS, evening, find
from nestling.experiment.presets.evening import ROWS
from nestling.experiment.simulation import Overrides, simulate
from tests.experiment.test_presets import DATA
from tests.quick import mostly_slow

EVENINGS = [name for name in PRESETS if name.endswith("-evening") and "-grand-" not in name]
MACS, STEPS = 45e12, 130_000  # of a run


def spent(experiment):
    """Multiply-accumulates of all clients and steps of SGD, by the package's own costs, without training."""
    channels, size, classes, samples = DATA[experiment.data.name]
    targets = torch.arange(1000) % classes  # costs depend on the shape of images, not on their number
    images = torch.zeros(len(targets), channels, size, size)
    simulation = simulate(Overrides(experiment, dataset=from_arrays(images, targets, (images, targets))))
    share = math.ceil(samples * (1 - experiment.data.public_share) / experiment.fleet.clients)
    setup, turns = simulation.setup, 0
    plans = {ratio: setup.submodel_plan(ratio) for ratio in {*setup.ratios, 1.0}}
    public = math.floor(samples * experiment.data.public_share)
    work = setup.method.public_work(setup, range(public))  # distillations at the clients
    macs = {
        ratio: simulation.costs.macs(plan, share)
        + simulation.costs.cost(plan).macs // experiment.local.batch_size * (3 * work.trained + work.predicted)
        for ratio, plan in plans.items()
    }
    by_level, total = setup.method.plan.by_level, 0
    for round in range(1, experiment.rounds + 1):
        for client in simulation.fleet.sample(round):
            total += macs[simulation.fleet.level(client, round).ratio if by_level else 1.0]
            turns += experiment.local.epochs
    options = experiment.options
    distilled = math.ceil(work.trained / options["batch"]) * (experiment.fleet.per_round + 1) if work.trained else 0
    distilled += options.get("steps", 0)  # at the server
    return total, turns * math.ceil(share / experiment.local.batch_size) + experiment.rounds * distilled


def test_the_rows_that_decide_claims_have_one():
    assert {f"{row}-evening" for row in ROWS} == set(EVENINGS)
    assert set(ROWS) <= set(PRESETS)
    for data in ("mnist", "cifar10"):
        assert {f"fedavg-{data}-iid-a", f"heterofl-{data}-iid-a-e", f"fedavg-{data}-iid-e"} <= set(ROWS)
    for classes in ("high", "low"):
        assert {f"{method}-cifar10-{classes}-a-b-c-d-e" for method in ("fedrolex", "heterofl", "fed-dropout")} < set(
            ROWS
        )
    for name in EVENINGS:
        assert find(name) == evening(find(name.removesuffix("-evening")))
        assert PRESETS[name].repeats == f"{PRESETS[name.removesuffix('-evening')].repeats} (an evening)"


@pytest.mark.parametrize("name", mostly_slow(EVENINGS, quick=5))
def test_an_evening_is_enough(name):
    macs, steps = spent(find(name))
    alone = name.startswith("fedavg-") and name.endswith("-a-evening")  # everybody trains model a
    assert macs <= (2 * MACS if alone else MACS), f"{macs / 1e12:.1f} T"
    assert steps <= STEPS
    assert macs > 0.001 * MACS


def test_everybody_trains_on_the_whole_data_set():
    for name in EVENINGS:
        small, whole = find(name), find(name.removesuffix("-evening"))
        assert (small.method, small.model.width, small.fleet.levels) == (
            whole.method,
            whole.model.width,
            whole.fleet.levels,
        )
        assert (small.fleet.clients, small.fleet.per_round, small.fleet.assign) == (100, 10, whole.fleet.assign)
        assert (small.local.epochs, small.local.batch_size, small.data.max_samples) == (1, 10, 0)
        assert (small.evaluate.every, small.evaluate.norm_clients, small.evaluate.samples) == (32, 10, 0)
        assert small.local.weight_decay == whole.local.weight_decay


def test_models_and_rounds():
    cnn, rolling = find("heterofl-mnist-iid-a-e-evening"), find("fedrolex-cifar10-low-a-b-c-d-e-evening")
    assert (cnn.model.options, cnn.rounds) == ({"norm": "bn"}, 120)
    assert (rolling.model.options["depths"], max(rolling.model.options["widths"])) == ([1, 1, 1, 2], 128)
    assert rolling.rounds == 2 * 128
    assert find("nefl-cifar10-iid-resnet18-evening").model.options["widths"] == [16, 32, 64, 128]


def test_fedmorph_morphs_twenty_times_on_five_thousand_samples():
    rows = [find(f"{method}-mnist-resnet8-iid-evening") for method in ("fedavg", "fedpruned", "fedmorph")]
    assert {int(60_000 * row.data.public_share) for row in rows} == {5000}
    assert {(row.local.clip_norm, row.local.schedule, row.rounds) for row in rows} == {(0, "constant", 200)}
    assert rows[2].options["penalty"] == pytest.approx(16 * 1.6e-6)


def test_other_models_have_none():
    with pytest.raises(ConfigError, match=r"no evening version of experiments with vgg16: there is for cnn, "):
        evening(find("fedavg-cifar10-vgg16-iid"))
