"""FedMorph end to end: what it does between rounds, what nobody holds, and that it goes on where it was stopped."""

import pytest
import torch

import nestling
from nestling.cut import extract
from nestling.cut.extract import cuts
from nestling.errors import NestlingError
from nestling.experiment import load, resume, run
from nestling.experiment.simulation import Overrides, simulate
from nestling.settings import Data, Evaluate, FleetSettings, Model
from tests.experiment.test_resume import Stop
from tests.harness import rounds_of
from tests.quick import mostly_slow
from tests.run_cases import outcome, same_state, small

DATA = Data(name="digits", max_samples=400, public_share=0.25)
FEWER = Data(name="digits", max_samples=200, public_share=0.25)
WIDER = Model(name="cnn", options={"widths": [16, 32, 32]})  # of the narrow net, a unit is a tenth of a budget
ONE = FleetSettings(clients=8, per_round=4, levels="a")


def morphing(**changes):
    options = {"ratio": 0.5, "every": 2, "penalty": 1e-3, "mask_lr": 100.0, **changes.pop("options", {})}
    return small(**{"method": "fedmorph", "options": options, "data": DATA, "fleet": ONE, "rounds": 4, **changes})


def test_with_everything_kept_it_is_fedavg():
    fedavg = run(small(method="fedavg", data=DATA, fleet=ONE))
    morph = run(morphing(options={"ratio": 1.0, "every": 0}, rounds=3))
    assert same_state(fedavg.state, morph.state)
    for one, other in zip(fedavg.rounds, morph.rounds, strict=True):
        assert one["train_loss"] == other["train_loss"]
        assert one["bytes_up"] == other["bytes_up"]


def test_a_morph_changes_the_network_and_nothing_else_does():
    simulation, states, _ = rounds_of(morphing())
    plans = [simulation.setup.submodel_plan(1.0, state.method_state) for state in states]
    # after round 1: nothing; after round 2: a morph; after the last: none
    assert plans[0] == plans[1]
    assert plans[1] != plans[2]
    assert plans[2] == plans[3] == plans[4]
    assert [bool(state.networks) for state in states] == [False, False, True, False, True]
    for before, after in ((0, 1), (2, 3)):  # P8: what nobody held keeps its value
        slices = cuts(simulation.setup.axes, plans[after])
        for name, tensor in states[after].model.items():
            held = torch.zeros(tensor.shape, dtype=torch.bool)
            slices[name].put(held, torch.ones(slices[name].shape, dtype=torch.bool))
            assert torch.equal(tensor[~held], states[before].model[name][~held])


def test_the_large_network_is_as_of_the_last_morph():
    simulation, states, _ = rounds_of(morphing(rounds=5))
    wholes = [state.global_model(simulation.setup) for state in states]
    assert same_state(wholes[2], wholes[3])
    assert not same_state(wholes[3], wholes[4])
    assert not same_state(wholes[4], {name: states[5].model[name] for name in wholes[4]})


def test_the_averaged_network_is_written_back_before_it_is_distilled():
    options = {"epochs": 0, "noise": False}
    simulation, states, _ = rounds_of(morphing(options=options, rounds=3))
    plan = simulation.setup.submodel_plan(1.0, states[1].method_state)
    learnt = {name for name in simulation.setup.parameters if name in states[2].model}
    averaged = states[2].networks["averaged"][1]
    written = extract(simulation.setup.axes, plan, states[2].model)
    assert all(torch.equal(averaged[name], written[name]) for name in learnt)


def test_it_learns_and_shrinks():
    base = {"rounds": 12, "data": Data(name="digits", public_share=0.2), "evaluate": Evaluate(every=12)}
    result = run(morphing(options={"every": 3, "penalty": 2e-4, "mask_lr": 20.0}, model=WIDER, **base))
    setup = result.simulation.setup
    first = nestling.cost(setup.model, setup.axes, setup.submodel_plan(1.0), setup.example)
    final = result.summary
    assert final["levels"]["a"]["parameters"] < 0.95 * first.parameters
    assert final["final"]["global_accuracy"] > 0.85  # the large network, which only ever learnt without labels
    assert final["final"]["worst_submodel"] > 0.85
    assert set(final["final"]["networks"]) == {"averaged"}


@pytest.mark.slow
def test_a_budget_is_met():
    options = {"every": 1, "budget": 0.2, "ratio": 0.7, "epochs": 4, "mask_lr": 20.0}
    simulation, states, _ = rounds_of(morphing(options=options, rounds=12, model=WIDER))
    setup, cost = simulation.setup, simulation.costs.cost
    whole = cost(setup.submodel_plan(1.0, {f"mask/{name}": torch.ones(n) for name, n in setup.axes.axes.items()}))
    share = cost(setup.submodel_plan(1.0, states[-1].method_state)).parameters / whole.parameters
    assert share == pytest.approx(0.2, rel=0.15)


def test_levels_nest():
    simulation, states, _ = rounds_of(morphing(fleet=FleetSettings(clients=8, per_round=8, levels="a-b-d")))
    for state in states:
        wide, half, narrow = (
            cuts(simulation.setup.axes, simulation.setup.submodel_plan(ratio, state.method_state))
            for ratio in (1, 0.5, 0.125)
        )
        for name in wide:
            assert half[name].inside(wide[name])
            assert narrow[name].inside(half[name])


@pytest.fixture(scope="module", params=["fedmorph", "fedmorphprox"])
def whole(request, tmp_path_factory):
    """An experiment with two morphs, and where it ran without being stopped."""
    experiment = morphing(method=request.param, rounds=5, checkpoint_every=1, data=FEWER)
    folder = tmp_path_factory.mktemp(request.param) / "whole"
    run(experiment, out=folder)
    return experiment, folder


@pytest.mark.parametrize("stop", mostly_slow([Stop(jobs=6), Stop(rounds=2), Stop(jobs=9)], quick=1))
def test_it_goes_on_to_the_same_bytes(tmp_path, stop, whole):
    experiment, folder = whole
    with pytest.raises(KeyboardInterrupt):
        run(experiment, out=tmp_path / "cut", callbacks=[Stop(stop.rounds, stop.jobs)])
    resume(tmp_path / "cut")
    assert outcome(tmp_path / "cut") == outcome(folder)


@pytest.mark.slow
def test_two_workers_tell_the_same(tmp_path):
    for workers in (1, 2):
        run(morphing(workers=workers, rounds=3, data=FEWER), out=tmp_path / str(workers))
    assert outcome(tmp_path / "1")[0] == outcome(tmp_path / "2")[0]
    assert outcome(tmp_path / "1")[2] == outcome(tmp_path / "2")[2]


def test_both_networks_can_be_taken_out(tmp_path):
    result = run(morphing(), out=tmp_path / "run")
    small_one, large = load(tmp_path / "run").submodel("a"), load(tmp_path / "run").submodel()
    count = [sum(tensor.numel() for tensor in model.parameters()) for model in (small_one, large)]
    assert count[0] == result.summary["levels"]["a"]["parameters"] < count[1]
    accuracy = large(result.simulation.dataset.ready(result.simulation.dataset.test_inputs[:100])).argmax(-1)
    right = (accuracy == result.simulation.dataset.test_targets[:100]).double().mean().item()
    assert right == pytest.approx(result.summary["final"]["global_accuracy"])


def test_the_server_needs_samples():
    with pytest.raises(NestlingError, match=r"fedmorph needs samples without labels.*data\.public_share"):
        simulate(Overrides(morphing(data=Data(name="digits"))))


def test_the_unlabelled_samples_are_nobody_elses():
    simulation = simulate(
        Overrides(morphing(data=Data(name="digits", max_samples=400, public_share=0.25, validation=0.1)))
    )
    held = torch.cat([*simulation.partition.train, simulation.data.validation.numbers])
    assert len(simulation.public) == 100
    assert len(held) == len(held.unique()) == 300
    assert len(simulate(Overrides(morphing(data=Data(name="digits", public_from_test=True)))).public) == 359


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ratio": 0}, "ratio must be above 0"),
        ({"budget": 2}, "budget must be from 0"),
        ({"every": -1}, "every must be 0 or more"),
        ({"temperature": 0}, "temperature must be above 0"),
        ({"gradient": "none"}, "'gradient' of fedmorph cannot be 'none'"),
        ({"mu": 1}, "no option 'mu'"),
        ({"budget": 0.1, "penalty": 0}, "penalty, which must start above 0"),
    ],
)
def test_options_that_cannot_be(options, message):
    with pytest.raises(NestlingError, match=message):
        simulate(Overrides(small(method="fedmorph", options=options, data=DATA)))
