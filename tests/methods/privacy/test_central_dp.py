"""Rounds with differential privacy: without noise they are FedAvg's, ε is recorded and never counted twice."""

import json
import math
from dataclasses import replace

import pytest
import torch

from nestling.cut.extract import cuts
from nestling.data import load, partition
from nestling.errors import NestlingError
from nestling.events import collect
from nestling.experiment import find, resume
from nestling.experiment.callback import Callback
from nestling.experiment.runner import run
from nestling.experiment.simulation import Overrides, simulate
from nestling.methods import make
from nestling.settings import Data, Evaluate, Experiment, FleetSettings, Model
from tests.quick import mostly_slow
from tests.run_cases import outcome, small

pytest.importorskip("dp_accounting")
GROUP_NORM = Model(name="cnn", options={"widths": [8, 16], "norm": "gn"})


def private(**changes):
    settings = {
        "model": GROUP_NORM,
        "options": {"masked": False},
        "fleet": FleetSettings(clients=8, per_round=8, levels="a-b"),
        "data": Data(name="digits", max_samples=200),
        "rounds": 2,
    }
    return small(**{**settings, **changes})


@pytest.mark.parametrize(
    ("method", "counts"),
    mostly_slow([("heterofl", "fixed"), ("fedrolex", "real"), ("heterofl", "real"), ("fedrolex", "fixed")], quick=1),
)
def test_without_noise_and_clipping_rounds_are_those_of_the_mean(method, counts):
    plain = run(private(method=method))
    with collect():
        result = run(private(method=method, parts=f"dp:clip=1e6:noise=0:counts={counts}"))
    for name, tensor in plain.state.items():
        torch.testing.assert_close(result.state[name], tensor, rtol=0, atol=1e-6)
    assert result.rounds[-1]["privacy"]["epsilon"] is None
    assert result.rounds[-1]["privacy"]["noise"] == 0


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["parts=dp"], "dp needs either noise or epsilon"),
        (["parts=dp:noise=1:epsilon=2"], "dp needs either noise or epsilon"),
        (["parts=dp:8"], "'rate', 'count_noise': write parts=dp:clip=0.5:epsilon=8"),
        (["parts=dp:nois=1"], "did you mean 'noise'"),
        (["parts=dp:noise=much"], "dp's noise must be a number, not 'much'"),
        (["parts=dp:noise=1:counts=some"], "dp's counts are fixed or real, not 'some'"),
        (["parts=dp:noise=1:clip=0"], "dp's clip must be a finite number, above 0, not 0.0"),
        (["parts=dp:noise=1:delta=0.5"], "dp's delta must be below 1/clients = 0.125, not 0.5"),
        (["parts=dp:noise=1", "options.masked=true"], "a masked loss tells which classes a client holds"),
        (["parts=dp:noise=1", "model.options.norm=bn"], "clients tell norm statistics without noise"),
        (["parts=dp:noise=1", "fleet.devices=phone-low,laptop"], "leave out fleet.devices"),
        (["parts=dp:noise=1", "server.weighting=samples"], "dp counts every client alike"),
        (["parts=dp:noise=1:counts=real", "fleet.sampling=poisson"], "use counts=fixed"),
        (["parts=dp:noise=1,median"], "one part with `aggregator`, not dp and median"),
        (["parts=dp:noise=1", "method=fed-dropout", "options.masked=false"], "a slice of its own"),
        (["parts=dp:noise=1", "method=standalone"], "clients of standalone share nothing"),
        (["parts=dp:noise=1,feddyn", "method=fedavg"], "and dp of fedavg merges otherwise"),
    ],
)
def test_what_would_not_be_private_is_refused_in_one_sentence(settings, words):
    with pytest.raises(NestlingError) as caught:
        simulate(Overrides(private().with_settings(settings)))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("preset", "words"),
    [
        ("nefl-digits", "the tensors of sub-models"),
        ("ds-fl-digits", "clients tell norm statistics|clients reply more"),
        ("feddf-digits", "clients tell norm statistics|the server learns from each update"),
    ],
)
def test_methods_whose_clients_tell_more_are_refused(preset, words):
    with pytest.raises(NestlingError, match=words):
        simulate(Overrides(find(preset).with_settings(["parts=dp:noise=1"])))


@pytest.mark.parametrize(
    ("preset", "settings"),
    mostly_slow(
        [
            ("fedavg-digits", []),
            ("depthfl-digits", ["options.feddyn=0"]),
            ("fedprox-digits", ["upload.format=8-bit"]),
            ("heterofl-digits", ["options.masked=false", "server.optimizer=fedadam", "upload.format=topk"]),
            ("fedrolex-digits", ["options.masked=false", "fleet.assign=dynamic"]),
            ("fjord-digits", []),
            ("lg-fedavg-digits", []),
            ("fedmorph-digits", []),
        ],
        quick=2,
    ),
)
def test_what_goes_together(preset, settings):
    private = ["parts=dp:clip=0.5:noise=1", "model.options.norm=gn", "fleet.sampling=poisson"]
    assert simulate(Overrides(find(preset).with_settings([*settings, *private]))).setup.participation is not None


def test_epsilon_is_printed_and_recorded_and_grows_with_rounds(capsys):
    fleet = FleetSettings(clients=8, per_round=4, levels="a-b", sampling="poisson")
    result = run(private(fleet=fleet, rounds=4, parts="dp:clip=0.5:epsilon=5"))
    spent = [line["privacy"]["epsilon"] for line in result.rounds]
    assert spent == sorted(spent)
    assert spent[0] < spent[-1]
    assert 4.9 < spent[-1] <= 5.0
    assert result.rounds[0]["privacy"]["adjacency"] == "add-or-remove-one"
    assert result.rounds[0]["privacy"]["delta"] == pytest.approx(8**-1.1)
    assert all(math.isfinite(tensor.sum().item()) for tensor in result.state.values())
    assert {line["clients"] for line in result.rounds} != {4}, "how many take part is drawn"
    assert result.summary["privacy"] == result.rounds[-1]["privacy"]
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("round ")]
    printed = [next(part for part in line.split(" · ") if part.startswith("ε ")) for line in lines]
    assert printed == [f"ε {epsilon:.3g}" for epsilon in (spent[1], spent[3])], "at each evaluated round"


def test_a_round_of_nobody_is_noised_like_any_other():
    fleet = FleetSettings(clients=8, per_round=1, levels="a-b", sampling="poisson")
    experiment = private(fleet=fleet, rounds=3, parts="dp:clip=0.5:noise=1", evaluate=Evaluate(every=3))
    with collect():
        for seed in range(20):
            result = run(experiment.with_settings([f"seed={seed}", "rounds=1"]))
            if result.rounds[0]["clients"] == 0:
                break
    assert result.rounds[0]["clients"] == 0
    start = result.simulation.setup.model.state_dict()
    assert not any(torch.equal(result.state[name], start[name]) for name in result.simulation.setup.parameters)


@pytest.mark.parametrize("counts", ["fixed", pytest.param("real", marks=pytest.mark.slow)])
def test_the_data_of_one_client_move_a_whole_round_by_no_more_than_the_accountant_is_told(counts):
    """Training, uploads, merge and step; with fixed counts, a client without data is one that is not there."""
    clip, data = 0.05, load("digits")
    shares = partition(data, 8)
    experiment = private(
        parts=f"dp:clip={clip}:noise=0:counts={counts}", data=Data(name="digits", min_samples=0), rounds=1
    )
    neighbours = {"fixed": shares.train[0][:0], "real": shares.train[1][:20]}
    other = replace(shares, train=(neighbours[counts], *shares.train[1:]))
    with collect():
        results = [run(experiment, dataset=data, partition=one, quiet=True) for one in (shares, other)]
    setup, names = results[0].simulation.setup, results[0].simulation.setup.parameters
    expected = 8 / len(setup.ratios)  # clients of each level; all of them hold what the narrowest holds
    inside = cuts(setup.axes, setup.submodel_plan(setup.ratios[0]))
    square = 0.0
    for name in names:
        counted = torch.full_like(setup.model.state_dict()[name], expected)
        inside[name].put(counted, torch.full(inside[name].shape, 2 * expected))
        moved = (results[0].state[name].double() - results[1].state[name].double()) * counted
        square += moved.square().sum().item()
    most = {"fixed": clip, "real": 2 * clip}[counts]
    assert clip / 2 < math.sqrt(square) <= most * (1 + 1e-4)


class Stop(Callback):
    def on_round(self, record, state):
        if record["round"] == 2:
            raise KeyboardInterrupt


def test_a_resumed_run_counts_no_round_twice_and_none_less(tmp_path):
    experiment = private(rounds=4, parts="dp:clip=0.5:noise=2", checkpoint_every=1, evaluate=Evaluate(every=4))
    run(experiment, out=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(experiment, out=tmp_path / "cut", callbacks=[Stop()])
    resume(tmp_path / "cut")
    assert outcome(tmp_path / "cut") == outcome(tmp_path / "whole")
    lines = [json.loads(line) for line in (tmp_path / "cut" / "metrics.jsonl").read_text().splitlines()]
    longer = resume(tmp_path / "cut", rounds=5)
    epsilons = [line["privacy"]["epsilon"] for line in longer.rounds]
    assert epsilons[:4] == [line["privacy"]["epsilon"] for line in lines]
    assert epsilons == sorted(set(epsilons))


def test_a_run_whose_noise_follows_from_its_rounds_cannot_get_more(tmp_path):
    experiment = private(rounds=1, parts="dp:clip=0.5:epsilon=8", evaluate=Evaluate(every=1))
    run(experiment, out=tmp_path / "run")
    with pytest.raises(NestlingError, match="depends on their number"):
        resume(tmp_path / "run", rounds=2)
    assert make("fedavg", {}, "dp:noise=1").extendable
    assert not make("fedavg", {}, "dp:epsilon=1").extendable


def test_settings_survive_a_file():
    experiment = Experiment().with_settings(["parts=dp:clip=0.5:epsilon=8", "fleet.sampling=poisson"])
    assert Experiment.from_toml(experiment.to_toml()) == experiment
