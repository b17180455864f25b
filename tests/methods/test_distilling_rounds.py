"""FedDF, DS-FL and Fed-ET in whole runs: same bytes however they run, what nobody held, costs, and what is refused."""

import math
from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch
from torch import nn

import nestling
from nestling.cut.extract import cuts
from nestling.data import from_arrays
from nestling.errors import NestlingError
from nestling.experiment import resume, run
from nestling.experiment.simulation import Overrides, simulate
from nestling.methods import Method, Part
from nestling.methods.context import AfterMerge
from nestling.methods.frozen import frozen_names
from nestling.methods.parts.plans import PrefixPlan
from nestling.methods.parts.static_norms import StaticNorms
from nestling.settings import Data, FleetSettings, Model
from nestling.tasks import Regression
from nestling.upload import Upload
from tests.experiment.test_resume import Stop
from tests.harness import rounds_of
from tests.quick import mostly_slow
from tests.run_cases import outcome, same_state, tiny

DATA = Data(name="digits", max_samples=120, public_share=0.25)
QUICK = {
    "feddf": {"steps": 3, "patience": 2, "batch": 16, "samples": 20},
    "ds-fl": {"samples": 20, "epochs": 1, "batch": 10},
    "fed-et": {"steps": 3, "batch": 16, "samples": 20},
}
METHODS = list(QUICK)


def distilling(method, **changes):
    options = {**QUICK[method], **changes.pop("options", {})}
    return tiny(**{"method": method, "options": options, "data": DATA, "checkpoint_every": 1, **changes})


@pytest.fixture(scope="module", params=METHODS)
def whole(request, tmp_path_factory):
    """An experiment, and where it ran without being stopped."""
    experiment = distilling(request.param, rounds=3)
    folder = tmp_path_factory.mktemp(request.param) / "whole"
    run(experiment, out=folder)
    return experiment, folder


@pytest.mark.parametrize("stop", mostly_slow([Stop(jobs=3), Stop(rounds=1), Stop(rounds=2)], quick=1))
def test_a_stopped_run_goes_on_to_the_same_bytes(tmp_path, stop, whole):
    experiment, folder = whole
    with pytest.raises(KeyboardInterrupt):
        run(experiment, out=tmp_path / "cut", callbacks=[Stop(stop.rounds, stop.jobs)])
    resume(tmp_path / "cut")
    assert outcome(tmp_path / "cut") == outcome(folder)


@pytest.mark.slow
def test_two_workers_change_nothing(tmp_path, whole):
    experiment, folder = whole
    run(experiment.with_settings(["workers=2"]), out=tmp_path / "two")
    first, other = outcome(folder), outcome(tmp_path / "two")
    assert (first[0], first[2]) == (other[0], other[2])


@dataclass(frozen=True)
class Register(Part):
    """Remembers who taught the server in a round, and whether all came by themselves."""

    def received(self, round, update, earlier):
        (who,) = update.who
        return [*(earlier or []), who.client]

    def after_merge(self, round, merged):
        return AfterMerge(merged.model, {"teachers": torch.tensor(merged.received)})


def test_clients_that_train_as_one_network_are_received_one_by_one():
    fleet = FleetSettings(clients=6, per_round=6, levels="a")
    method = Method("register", PrefixPlan(), StaticNorms(), Register())
    settings = tiny(data=DATA, fleet=fleet, rounds=1, group_clients=3)
    _, states, _ = rounds_of(settings, method=method)
    assert sorted(states[1].method_state["teachers"].tolist()) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("method", ["feddf", "fed-et"])
def test_what_no_client_held_keeps_its_value(method):
    fleet = FleetSettings(clients=4, per_round=1, levels="a-d")  # one level a round
    simulation, states, _ = rounds_of(distilling(method, fleet=fleet, rounds=4))
    setup = simulation.setup
    widest = [max(who.level.ratio for who in simulation.participants(number)) for number in range(1, 5)]
    assert min(widest) < 1
    shared = setup.parameters - setup.per_submodel
    for ratio, before, after in zip(widest, states, states[1:], strict=False):
        slices = cuts(setup.axes, setup.submodel_plan(ratio))
        for name in shared if method == "feddf" else ():
            held = torch.zeros(before.model[name].shape, dtype=torch.bool)
            slices[name].put(held, torch.ones(slices[name].shape, dtype=torch.bool))
            assert torch.equal(after.model[name][~held], before.model[name][~held])
        if method == "fed-et":  # sizes that nobody trained keep what is theirs
            key = setup.submodel_plan(ratio).key
            others = before.submodels.keys() - {key}
            assert all(same_state(after.submodels[other], before.submodels[other]) for other in others)


def test_clients_of_ds_fl_keep_what_they_did_not_train():
    simulation, states, _ = rounds_of(distilling("ds-fl", rounds=3))
    setup, initial = simulation.setup, states[0].model
    for number, (before, after) in enumerate(pairwise(states), start=1):
        assert same_state(after.model, initial)  # weights never travel, and nobody starts from another's
        there = {who.client for who in simulation.participants(number)}
        for client in set(before.clients.private.clients()) - there:
            assert before.clients.private.get(client)[1] == after.clients.private.get(client)[1]
            assert same_state(before.clients.private.get(client)[0], after.clients.private.get(client)[0])
    assert setup.private == frozenset(initial)


class Frozen(nn.Sequential):
    """A net with dropout whose first convolution, and its norm, the user froze."""

    def __init__(self):
        super().__init__(
            nn.Conv2d(1, 6, 3),
            nn.BatchNorm2d(6),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Conv2d(6, 8, 3),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(8 * 16, 12),
            nn.ReLU(),
            nn.Linear(12, 10),
        )
        self[0].requires_grad_(False)
        self[1].requires_grad_(False)


@pytest.mark.parametrize("method", mostly_slow(METHODS, quick=1))
def test_frozen_layers_stay_and_dropout_draws_the_same_again(method):
    torch.manual_seed(0)
    model = Frozen()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    results = [run(distilling(method, rounds=2), model=model) for _ in range(2)]
    assert results[0].rounds == results[1].rounds
    state, again = (result.state for result in results)
    assert same_state(state, again)
    assert same_state(model.state_dict(), before)
    assert all(torch.equal(state[name], before[name]) for name in frozen_names(model))


@pytest.mark.parametrize("method", mostly_slow(["feddf", "fed-et"], quick=1))
def test_encoded_uploads_teach_what_arrives(method):
    result = run(distilling(method, rounds=1, upload=Upload(format="topk", fraction=0.5)))
    assert 0 < result.summary["bytes_up"] < result.summary["bytes_down"]


@pytest.mark.parametrize("method", METHODS)
def test_without_samples_or_classes_it_is_refused(method):
    with pytest.raises(NestlingError, match=f"^{method} needs samples without labels at the server: set data.public"):
        simulate(Overrides(distilling(method, data=Data(name="digits", max_samples=80))))
    inputs = torch.randn(40, 1, 8, 8)
    numbers = from_arrays(inputs, torch.zeros(40).long(), test=(inputs, torch.zeros(40).long()))
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    with pytest.raises(NestlingError, match=f"{method} distils predicted classes, and the task regression has none"):
        simulate(Overrides(distilling(method, data=Data(public_share=0.2)), model, numbers, task=Regression()))


@pytest.mark.parametrize(
    ("method", "changes", "words"),
    [
        ("ds-fl", {"upload": Upload(format="topk", fraction=0.1)}, "ds-fl sends no weights, which upload.format=topk"),
        ("ds-fl", {"parts": "fedprox:0.1"}, "ds-fl sends no weights that clients could be held near"),
        ("ds-fl", {"parts": "feddyn:0.1"}, "feddyn cannot be combined with ds-fl, which changes the model after"),
        ("feddf", {"parts": "feddyn:0.1"}, "feddyn cannot be combined with feddf, which changes the model after"),
        ("fed-et", {"parts": "feddyn:0.1"}, "feddyn cannot be combined with fed-et, which changes the model after"),
        ("feddf", {"select_rows": True}, "select_rows needs a method with a masked loss"),
        ("feddf", {"data": Data(max_samples=80, public_share=0.04)}, "feddf needs at least 4 samples without labels"),
        ("fed-et", {"options": {"layers": 9}}, "fed-et hands back 9 layers before the last one"),
        ("feddf", {"options": {"held_out": 1.0}}, "feddf's held_out must be above 0 and below 1"),
        ("feddf", {"options": {"samples": 3}}, r"feddf's samples must be 0 \(all\) or at least 4"),
        ("feddf", {"options": {"lr": 0.0}}, "feddf's lr must be above 0"),
        ("feddf", {"options": {"patience": -1}}, "feddf's patience must be 0 or more"),
        ("ds-fl", {"options": {"temperature": 0.0}}, "ds-fl's temperature must be above 0"),
        ("ds-fl", {"options": {"samples": 1}}, r"ds-fl's samples must be 0 \(all\) or at least 2"),
        ("fed-et", {"options": {"diversity": -0.1}}, "fed-et's diversity must be 0 or more"),
        ("fed-et", {"options": {"steps": 0}}, "fed-et's steps must be above 0"),
        ("fed-et", {"options": {"samples": 1}}, r"fed-et's samples must be 0 \(all\) or at least 2"),
    ],
)
def test_combinations_and_options_that_make_no_sense_are_refused(method, changes, words):
    with pytest.raises(NestlingError, match=words) as caught:
        simulate(Overrides(distilling(method, **changes)))
    assert "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["gn", "none"])
@pytest.mark.parametrize("method", METHODS)
def test_models_without_batch_norm_need_no_statistics(method, norm):
    model = Model(name="cnn", options={"widths": [4, 4], "norm": norm})
    result = run(distilling(method, rounds=2, model=model))
    assert 0 <= result.summary["final"]["global_accuracy"] <= 1


@pytest.mark.parametrize("method", mostly_slow(["feddf", "fed-et"], quick=1))
def test_slices_cost_what_they_cost_with_heterofl(method):
    """The server's work is not the clients', and nothing travels but slices."""
    plain = run(distilling(method, rounds=2)).summary
    heterofl = run(tiny(data=DATA, rounds=2, options={"masked": False})).summary
    for name in ("bytes_down", "bytes_up", "bytes_setup", "client_macs"):
        assert plain[name] == heterofl[name]


def test_ds_fl_counts_labels_samples_and_distillation():
    fleet = FleetSettings(clients=4, per_round=4, levels="a-b")
    simulation, states, _ = rounds_of(distilling("ds-fl", fleet=fleet, rounds=2))
    labels = 20 * 10 * 4  # samples × classes × 4 bytes
    first, second = (state.totals for state in states[1:])
    assert (first.bytes_up, first.bytes_down) == (4 * labels, 0)
    assert (second.bytes_up, second.bytes_down) == (8 * labels, 4 * labels)
    samples = simulation.public.batch(torch.arange(len(simulation.public)))[0]
    assert first.bytes_setup == second.bytes_setup == 4 * samples.numel() * samples.itemsize
    own = sum(simulation.costs.macs(setup_plan(simulation, who), who.samples) for who in simulation.participants(1))
    per_sample = sum(
        simulation.costs.cost(setup_plan(simulation, who)).macs // simulation.setup.training.batch_size
        for who in simulation.participants(1)
    )
    assert first.client_macs == own + 2 * 20 * per_sample  # statistics and predictions
    assert second.client_macs - first.client_macs == own + (2 * 20 + 3 * 20) * per_sample  # and a pass of training


def setup_plan(simulation, who):
    return simulation.setup.submodel_plan(who.level.ratio)


@pytest.mark.slow
def test_devices_are_timed_with_all_that_travels():
    devices = FleetSettings(clients=4, per_round=4, levels="a-b", devices="phone-low:1")
    seconds = [
        run(distilling("ds-fl", fleet=devices, rounds=2, options={"samples": samples})).rounds[1]["simulated_seconds"]
        for samples in (4, 28)
    ]
    assert seconds[0] < seconds[1]
    assert all(map(math.isfinite, seconds))


def test_sub_models_of_ds_fl_are_its_clients():
    result = run(distilling("ds-fl", rounds=2))
    assert set(result.summary["final"]["submodels"]) <= {"a", "b"}
    alone = run(distilling("ds-fl", rounds=2).with_settings(["evaluate.submodels=false"]))
    assert set(alone.summary["final"]["submodels"]) == {"full"}
    assert alone.summary["final"]["global_accuracy"] == result.summary["final"]["global_accuracy"]
    assert same_state(alone.state, result.state)


def test_small_models_of_ds_fl_are_not_the_servers_to_give(tmp_path):
    result = run(distilling("ds-fl", rounds=1), out=tmp_path / "run")
    loaded = nestling.load(tmp_path / "run")
    with pytest.raises(NestlingError, match="the server of ds-fl has no model of level 'b', because clients keep"):
        loaded.submodel("b")
    data = result.simulation.dataset
    with torch.no_grad():
        right = loaded.submodel()(data.ready(data.test_inputs[:20])).argmax(1) == data.test_targets[:20]
    assert right.double().mean().item() == pytest.approx(result.summary["final"]["global_accuracy"])
