"""NeFL end to end: what sub-models have for themselves, and what they share."""

import json
import math

import pytest
import torch

import nestling
from nestling import Plan, Tally
from nestling.errors import RunError
from nestling.experiment import load, resume, run
from nestling.fleet import Level
from nestling.methods import Participant, make
from nestling.methods.messages import Progress, Update
from nestling.methods.nefl import nefl_plans
from nestling.methods.parts.per_submodel import PerSubmodel
from nestling.methods.parts.static_norms import StaticNorms
from nestling.server.aggregate import Merge
from nestling.server.state import ServerState
from nestling.settings import Data, Evaluate, FleetSettings, LocalTraining, Model
from tests.harness import PLAIN, rounds_of, setup_of
from tests.quick import mostly_slow
from tests.run_cases import outcome, same_state, small

NET = Model(name="resnet18", options={"widths": [8, 8, 16, 16], "pool": False})


def experiment(**changes):
    settings = {
        "method": "nefl",
        "model": NET,
        "fleet": FleetSettings(clients=6, per_round=4, levels="0.2-0.4-0.6-0.8-1", assign="tiers"),
        "local": LocalTraining(lr=0.05, momentum=0.0, weight_decay=0.0, epochs=1, batch_size=20),
        "data": Data(name="digits", max_samples=200),
        "rounds": 2,
    }
    return small(**{**settings, **changes})


@pytest.mark.parametrize("variant", mostly_slow(["WD", "W", "D", "DO"], quick=1))
@pytest.mark.parametrize("learn", mostly_slow([True, False], quick=1))
def test_every_variant_runs(variant, learn):
    options = {"variant": variant, "learn_steps": learn}
    result = run(experiment(options=options, rounds=1))
    assert set(result.summary["final"]["submodels"]) == {"0.2", "0.4", "0.6", "0.8", "1"}
    sizes = [level["parameters"] for level in result.summary["levels"].values()]
    assert sizes == sorted(sizes, reverse=True)
    simulation, states, _ = rounds_of(experiment(options=options, rounds=1))
    setup = simulation.setup
    for key, own in states[-1].submodels.items():
        steps = {name: float(tensor) for name, tensor in own.items() if name.endswith(".step")}
        if not learn:
            plans = map(setup.submodel_plan, simulation.levels.values())
            assert steps == setup.method.initial(setup, next(plan for plan in plans if plan.key == key))
            assert variant == "DO" or set(steps.values()) == {1.0}
        elif steps:
            assert any(value != 1.0 for value in steps.values())


@pytest.mark.parametrize(
    ("widths", "source"), [([4, 8, 16, 32], "table resnet18"), ([8, 8, 16, 16], "builder")], ids=["table", "builder"]
)
def test_the_summary_says_what_made_each_submodel(tmp_path, widths, source):
    net = Model(name="resnet18", options={"widths": widths, "pool": False})
    fleet = FleetSettings(clients=6, per_round=2, levels="0.2-0.5-1")
    run(experiment(model=net, fleet=fleet, rounds=1), out=tmp_path / "run")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["submodels"] == {"0.2": source, "0.5": "builder", "1": "whole model"}
    keys = list(summary)
    assert keys[keys.index("submodels") - 1] == "levels"


@pytest.mark.slow
def test_other_methods_say_nothing_of_it():
    assert "submodels" not in run(experiment(method="heterofl", rounds=1)).summary


def test_submodels_have_their_own_norms_and_steps_and_share_the_rest():
    simulation, (before, after, *_), _ = rounds_of(experiment(rounds=1))
    setup, context = simulation.setup, before.context(simulation.setup)
    trained = {setup.method.client_plan(context, who).key for who in simulation.participants(1)}
    assert set(after.submodels) == trained
    for name in setup.per_submodel:
        assert torch.equal(before.model[name], after.model[name])  # the global copy is nobody's
    for own in after.submodels.values():
        assert set(own) <= setup.per_submodel
        assert all(".norm" in name or "norm." in name or name.endswith(".step") for name in own)
        assert any("running_mean" in name and bool(tensor.any()) for name, tensor in own.items())
        assert all(int(tensor) > 0 for name, tensor in own.items() if name.endswith("num_batches_tracked"))


def test_a_submodel_nobody_trained_keeps_its_values():
    """Only the smallest is trained in these rounds: all others, and what only they hold, stay as they were."""
    fleet = FleetSettings(clients=6, per_round=4, levels="0.2:1,1:0.0001")
    simulation, states, _ = rounds_of(experiment(fleet=fleet, rounds=2, options={"variant": "WD"}))
    assert set(states[-1].submodels) == {"g0.2"}
    plan = simulation.setup.submodel_plan(0.2)
    held = Tally(simulation.setup.axes, states[0].model)
    held.add(nestling.extract(simulation.setup.axes, plan, states[0].model), plan)
    for name in simulation.setup.parameters:
        outside = held.weights(name) == 0
        assert torch.equal(states[0].model[name][outside], states[-1].model[name][outside])
        if name not in simulation.setup.per_submodel and bool((~outside).any()):
            assert not torch.equal(states[0].model[name], states[-1].model[name])


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
    accuracy = tally.value()["0.weight"][:, 0]
    everyone = [value for trained in values.values() for value in trained]
    assert torch.allclose(accuracy[:2], torch.tensor(sum(everyone) / 7))
    assert torch.allclose(accuracy[2:6], torch.tensor((3.0 + 4 + 5 + 6 + 7) / 5))
    assert torch.allclose(accuracy[6:], torch.tensor((6.0 + 7) / 2))


class Stepping(torch.nn.Module):
    """A net with a step size and a counter."""

    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(2, 3, bias=False), torch.nn.Linear(3, 2, bias=False)
        self.step = torch.nn.Parameter(torch.zeros(()))
        self.register_buffer("count", torch.tensor(0))

    def forward(self, inputs):
        return self.last(self.step * self.first(inputs).relu())


def test_own_tensors_are_averaged_per_submodel():
    model = Stepping()
    axes = nestling.trace(model, torch.zeros(1, 2))
    setup = setup_of(model, axes, PLAIN.with_parts(PerSubmodel(("step", "count"))))
    merge, who = Merge(setup, ServerState.start(setup)), (Participant(0, Level("a", 1.0)),)
    for key, step, count, weight in (("small", 1.0, 3, 1.0), ("small", 4.0, 9, 2.0), ("large", 7.0, 1, 1.0)):
        state = {name: torch.ones_like(tensor) for name, tensor in model.state_dict().items()}
        state |= {"step": torch.tensor(step), "count": torch.tensor(count)}
        merge.add(Update(who, Plan(key=key), None, state, Progress(1, 0.0, 0.0)), weight)
    assert {key: {name: float(x) for name, x in own.items()} for key, own in merge.submodels().items()} == {
        "small": {"step": 3.0, "count": 9.0},
        "large": {"step": 7.0, "count": 1.0},
    }
    merged = merge.value()
    assert (float(merged["step"]), int(merged["count"])) == (0.0, 0), "the global copy is nobody's"
    assert bool((merged["first.weight"] == 1).all()), "all else is shared"


@pytest.mark.slow
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
    assert StaticNorms() in make("nefl", options["nefl"]).parts
    assert same_state(results["nefl"].state, results["heterofl"].state)
    accuracies = [list(result.summary["final"]["submodels"].values()) for result in results.values()]
    assert accuracies[0] == accuracies[1]


@pytest.mark.slow
def test_nefl_w_with_fixed_steps_is_nefls_fjord():
    """B.3 and A.3: the same bytes of the model, of every sub-model's norms, and the same accuracies."""
    net = Model(name="resnet18", options={"widths": [8, 8, 16, 16], "pool": False, "learn_steps": False})
    cases = {
        "nefl": ({"variant": "W", "learn_steps": False}, "0.25-0.5-1"),
        "fjord": ({"variant": "nefl"}, f"0.5-{math.sqrt(0.5)}-1"),
    }
    ends, scores = [], []
    for method, (options, levels) in cases.items():
        fleet = FleetSettings(clients=6, per_round=4, levels=levels, assign="dynamic")
        chosen = experiment(method=method, options=options, model=net, fleet=fleet)
        simulation, states, _ = rounds_of(chosen)
        plans = [simulation.setup.submodel_plan(ratio) for ratio in sorted(simulation.levels.values())]
        ends.append([states[-1].model, *(states[-1].submodel_tensors(simulation.setup, plan) for plan in plans)])
        scores.append(list(run(chosen).summary["final"]["submodels"].values()))
    assert all(same_state(one, other) for one, other in zip(*ends, strict=True))
    assert scores[0] == scores[1]


@pytest.mark.slow
def test_a_killed_run_finds_the_submodels_again(tmp_path):
    chosen = experiment(rounds=3, checkpoint_every=1, workers=1)
    run(chosen, out=tmp_path / "whole")
    cut = run(experiment(rounds=2, checkpoint_every=1), out=tmp_path / "cut")
    assert cut.summary["rounds_done"] == 2
    config = (tmp_path / "whole" / "config.toml").read_bytes()
    (tmp_path / "cut" / "config.toml").write_bytes(config)
    resume(tmp_path / "cut")
    assert outcome(tmp_path / "cut")[1]["final"] == outcome(tmp_path / "whole")[1]["final"]
    for file in (tmp_path / "whole" / "submodels").iterdir():
        assert file.read_bytes() == (tmp_path / "cut" / "submodels" / file.name).read_bytes()


@pytest.mark.slow
def test_the_number_of_workers_changes_no_bit():
    one, two = (run(experiment(workers=workers)) for workers in (1, 2))
    assert same_state(one.state, two.state)
    assert json.dumps(one.rounds) == json.dumps(two.rounds)


@pytest.mark.slow
def test_submodels_are_taken_out_by_level(tmp_path):
    result = run(experiment(rounds=2, evaluate=Evaluate(every=2)), out=tmp_path / "run")
    data = result.simulation.dataset
    for level in ("0.2", "1"):
        with torch.no_grad():
            predicted = load(tmp_path / "run").submodel(level)(data.ready(data.test_inputs)).argmax(1)
        accuracy = (predicted == data.test_targets).double().mean().item()
        assert accuracy == pytest.approx(result.summary["final"]["submodels"][level]["accuracy"], abs=1e-9)
    assert {path.stem for path in (tmp_path / "run" / "submodels").iterdir()} == {
        "g0.2",
        "g0.4",
        "g0.6",
        "g0.8",
        "full",
    }


@pytest.mark.slow
def test_a_run_whose_sub_models_were_cut_differently_is_not_resumed(tmp_path, monkeypatch):
    narrow = Model(name="resnet18", options={"widths": [4, 8, 16, 32], "pool": False})
    begun = experiment(model=narrow, rounds=1, options={"variant": "D"})
    with monkeypatch.context() as earlier:  # a version that had no tables for narrow nets
        earlier.setattr(nefl_plans, "_row", lambda *_: None)
        nefl_plans._plan.cache_clear()
        run(begun, out=tmp_path / "run")
        assert resume(tmp_path / "run", rounds=2).summary["rounds"] == 2
    nefl_plans._plan.cache_clear()
    with pytest.raises(RunError, match="than this version cuts: finish the run with the version it was begun with"):
        resume(tmp_path / "run", rounds=3)
