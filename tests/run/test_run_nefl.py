"""NeFL end to end: what sub-models have for themselves, and what they share."""

import json
import math
from functools import partial

import pytest
import torch
from quick import mostly_slow
from run_cases import same_state, small, told

import nestling
from nestling import Plan, Tally
from nestling.client.train import Progress
from nestling.engines import LocalEngine
from nestling.experiment import load, resume, run
from nestling.experiment.jobs import Update
from nestling.experiment.round import run_round
from nestling.experiment.server import Server
from nestling.experiment.setting import Overrides, setting
from nestling.experiment.submodel_means import SubmodelMeans
from nestling.experiment.worker import Worker
from nestling.methods import make
from nestling.settings import Data, Evaluate, FleetSettings, LocalTraining, Model

NET = Model(name="resnet18", options={"widths": [8, 8, 16, 16], "pool": False})


def experiment(**changes):
    settings = {
        "method": "nefl",
        "model": NET,
        "fleet": FleetSettings(clients=6, per_round=4, levels="0.2-0.4-0.6-0.8-1", assign="tiers"),
        "local": LocalTraining(lr=0.05, momentum=0.0, weight_decay=0.0, epochs=1, batch=20),
        "data": Data(name="digits", samples=200),
        "rounds": 2,
    }
    return small(**{**settings, **changes})


def played(chosen, made=None):
    made = made or setting(Overrides(chosen))
    engine = LocalEngine(partial(Worker, made))
    servers = [Server.start(made, None)]
    for _ in range(chosen.rounds):
        servers.append(run_round(made, servers[-1], engine)[0])
    return made, servers


@pytest.mark.parametrize("variant", mostly_slow(["WD", "W", "D", "DO"], quick=1))
@pytest.mark.parametrize("learn", mostly_slow([True, False], quick=1))
def test_every_variant_runs(variant, learn):
    options = {"variant": variant, "learn_steps": learn}
    result = run(experiment(options=options, rounds=1))
    assert set(result.summary["final"]["submodels"]) == {"0.2", "0.4", "0.6", "0.8", "1"}
    sizes = [level["parameters"] for level in result.summary["levels"].values()]
    assert sizes == sorted(sizes, reverse=True)
    made, servers = played(experiment(options=options, rounds=1), result.setting)
    for key, own in servers[-1].submodels.items():
        steps = {name: float(tensor) for name, tensor in own.items() if name.endswith(".step")}
        if not learn:
            plan = next(made.submodel(ratio) for ratio in made.levels.values() if made.submodel(ratio).key == key)
            assert steps == made.method.begin(made.axes, plan)
            assert variant == "DO" or set(steps.values()) == {1.0}
        elif steps:
            assert any(value != 1.0 for value in steps.values())


def test_submodels_have_their_own_norms_and_steps_and_share_the_rest():
    made, (before, after, *_) = played(experiment(rounds=1))
    trained = {made.method.plan(made.turn(client, made.level(client, 1).ratio, 1)).key for client in made.sample(1)}
    assert set(after.submodels) == trained
    for name in made.inconsistent:
        assert torch.equal(before.state[name], after.state[name])  # the global copy is nobody's
    for own in after.submodels.values():
        assert set(own) <= made.inconsistent
        assert all(".norm" in name or "norm." in name or name.endswith(".step") for name in own)
        assert any("running_mean" in name and bool(tensor.any()) for name, tensor in own.items())
        assert all(int(tensor) > 0 for name, tensor in own.items() if name.endswith("num_batches_tracked"))


def test_a_submodel_nobody_trained_keeps_its_values():
    """Only the smallest is trained in these rounds: all others, and what only they hold, stay as they were."""
    fleet = FleetSettings(clients=6, per_round=4, levels="0.2:1,1:0.0001")
    made, servers = played(experiment(fleet=fleet, rounds=2, options={"variant": "WD"}))
    assert set(servers[-1].submodels) == {"g0.2"}
    plan = made.submodel(0.2)
    held = Tally(made.axes, servers[0].state)
    held.add(nestling.extract(made.axes, plan, servers[0].state), plan)
    for name in made.parameters:
        outside = held.weights(name) == 0
        assert torch.equal(servers[0].state[name][outside], servers[-1].state[name][outside])
        if name not in made.inconsistent and bool((~outside).any()):
            assert not torch.equal(servers[0].state[name], servers[-1].state[name])


def test_the_worked_example_of_algorithm_2():
    """|M1| = |M5| = 2, |M3| = 3: what only 5 has is a mean of two, what 3 adds of five, what all have of seven."""
    net = torch.nn.Sequential(torch.nn.Linear(2, 10, bias=False), torch.nn.ReLU(), torch.nn.Linear(10, 2, bias=False))
    axes = nestling.trace(net, torch.zeros(1, 2))
    state = {name: torch.zeros_like(tensor) for name, tensor in net.state_dict().items()}
    tally = Tally(axes, state)
    values = {0.2: [1.0, 2.0], 0.6: [3.0, 4.0, 5.0], 1.0: [6.0, 7.0]}
    for width, trained in values.items():
        plan = nestling.plan(axes, width)
        for value in trained:
            sub = nestling.extract(axes, plan, state)
            tally.add({name: torch.full_like(tensor, value) for name, tensor in sub.items()}, plan)
    found = tally.value()["0.weight"][:, 0]
    everyone = [value for trained in values.values() for value in trained]
    assert torch.allclose(found[:2], torch.tensor(sum(everyone) / 7))
    assert torch.allclose(found[2:6], torch.tensor((3.0 + 4 + 5 + 6 + 7) / 5))
    assert torch.allclose(found[6:], torch.tensor((6.0 + 7) / 2))


def test_own_tensors_are_averaged_per_submodel():
    owns = SubmodelMeans(frozenset({"step", "count"}))
    for key, step, count, weight in (("small", 1.0, 3, 1.0), ("small", 4.0, 9, 2.0), ("large", 7.0, 1, 1.0)):
        state = {"step": torch.tensor(step), "count": torch.tensor(count), "other": torch.ones(2)}
        owns.add(Update((0,), Plan(key=key), None, state, Progress(1, 0.0, 0.0)), weight)
    assert {key: {name: float(x) for name, x in own.items()} for key, own in owns.value().items()} == {
        "small": {"step": 3.0, "count": 9.0},
        "large": {"step": 7.0, "count": 1.0},
    }


def test_nefl_w_with_fixed_steps_and_shared_norms_is_heterofl_without_its_scaler():
    levels = {"nefl": "0.25-0.5-1", "heterofl": f"0.5-{math.sqrt(0.5)}-1"}
    options = {
        "nefl": {"variant": "W", "learn_steps": False, "inconsistent": [], "table": "none"},
        "heterofl": {"scaler": False, "masked": False},
    }
    net = Model(name="resnet18", options={"widths": [8, 8, 16, 16], "pool": False, "learn_steps": False})
    results = {
        method: run(
            experiment(
                method=method,
                options=options[method],
                model=net,
                fleet=FleetSettings(clients=6, per_round=4, levels=levels[method], assign="dynamic"),
            )
        )
        for method in levels
    }
    assert make("nefl", options["nefl"]).static
    assert same_state(results["nefl"].state, results["heterofl"].state)
    accuracies = [list(result.summary["final"]["submodels"].values()) for result in results.values()]
    assert accuracies[0] == accuracies[1]


@pytest.mark.slow
def test_a_killed_run_finds_the_submodels_again(tmp_path):
    chosen = experiment(rounds=3, checkpoint=1, workers=1)
    run(chosen, out=tmp_path / "whole")
    cut = run(experiment(rounds=2, checkpoint=1), out=tmp_path / "cut")
    assert cut.summary["rounds_done"] == 2
    config = (tmp_path / "whole" / "config.toml").read_bytes()
    (tmp_path / "cut" / "config.toml").write_bytes(config)
    resume(tmp_path / "cut")
    assert told(tmp_path / "cut")[1]["final"] == told(tmp_path / "whole")[1]["final"]
    for file in (tmp_path / "whole" / "submodels").iterdir():
        assert file.read_bytes() == (tmp_path / "cut" / "submodels" / file.name).read_bytes()


@pytest.mark.slow
def test_the_number_of_workers_changes_no_bit():
    one, two = (run(experiment(workers=workers)) for workers in (1, 2))
    assert same_state(one.state, two.state)
    assert json.dumps(one.rounds) == json.dumps(two.rounds)


def test_submodels_are_taken_out_by_level(tmp_path):
    result = run(experiment(rounds=2, evaluate=Evaluate(every=2)), out=tmp_path / "run")
    data = result.setting.dataset
    for level in ("0.2", "1"):
        with torch.no_grad():
            said = load(tmp_path / "run").submodel(level)(data.ready(data.test_inputs)).argmax(1)
        found = (said == data.test_targets).double().mean().item()
        assert found == pytest.approx(result.summary["final"]["submodels"][level]["accuracy"], abs=1e-9)
    assert {path.stem for path in (tmp_path / "run" / "submodels").iterdir()} == {
        "g0.2",
        "g0.4",
        "g0.6",
        "g0.8",
        "full",
    }
