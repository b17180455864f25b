"""Clients without samples: data.min_samples=0 allows them, rounds skip them and count them."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import nestling
from nestling.data import Lazy, Text, Vocabulary, load, partition
from nestling.errors import NestlingError
from nestling.events import collect
from nestling.experiment import find, resume, run
from nestling.experiment.simulation import Overrides, simulate
from nestling.methods import names
from nestling.server.norm_statistics import _choose_clients
from nestling.settings import Data, Evaluate, FleetSettings, LocalTraining, Model, ServerSettings
from tests.run_cases import WITH_PUBLIC, outcome, small

EMPTY = (1, 4, 6)


def shares(clients=8, empty=EMPTY):
    """The digits dealt out, but for some clients, who lose what they have; their test samples they keep."""
    dealt = partition(load("digits"), clients, minimum=1)
    few = [samples[:20] for samples in dealt.train]
    none = torch.empty(0, dtype=torch.long)
    train = tuple(none if client in empty else samples for client, samples in enumerate(few))
    labels = tuple(none if client in empty else held for client, held in enumerate(dealt.labels))
    return replace(dealt, train=train, labels=labels)


def tiny(**changes):
    settings = {
        "rounds": 2,
        "model": Model(name="cnn", options={"widths": [4, 4]}),
        "data": Data(name="digits", min_samples=0),
        "fleet": FleetSettings(clients=8, per_round=6, levels="a-c"),
        "evaluate": Evaluate(every=1, samples=60),
    }
    return small(**{**settings, **changes})


def test_empty_clients_are_skipped_and_counted(tmp_path):
    with collect() as events:
        result = run(tiny(), partition=shares(), out=tmp_path / "run")
    simulation = result.simulation
    for line in result.rounds:
        drawn = simulation.fleet.sample(line["round"])
        without = [client for client in drawn if client in EMPTY]
        assert without
        assert line["empty"] == len(without)
        assert line["clients"] == len(drawn) - len(without) == sum(line["levels"].values())
        assert line["dropped"] == 0
    assert [event.kind for event in events] == ["client without samples"] * 2
    assert set(result.summary["local"]).isdisjoint(map(str, EMPTY))  # nothing to choose among: no local accuracy
    assert resume(tmp_path / "run", partition=shares()).summary["final"] == result.summary["final"]


def test_nothing_is_told_of_empty_clients_where_there_are_none(tmp_path):
    run(tiny(), partition=shares(empty=()), out=tmp_path / "may")
    run(tiny(data=Data(name="digits")), partition=shares(empty=()), out=tmp_path / "must_not")
    assert "empty" not in json.loads((tmp_path / "may" / "metrics.jsonl").read_text().splitlines()[0])
    assert outcome(tmp_path / "may")[0] == outcome(tmp_path / "must_not")[0]


def test_empty_clients_do_not_count_at_all():
    """The others get the same weights as in a fleet where the empty ones are not drawn."""
    everyone = FleetSettings(clients=8, per_round=8, levels="a")
    samples = ServerSettings(weighting="samples")
    one = run(tiny(method="fedavg", fleet=everyone, server=samples), partition=shares(empty=(7,)))
    fleet = FleetSettings(clients=7, per_round=7, levels="a")
    whole = shares(empty=())
    seven = replace(whole, train=whole.train[:7], test=whole.test[:7], labels=whole.labels[:7])
    other = run(tiny(method="fedavg", fleet=fleet, server=samples), partition=seven)
    assert all(torch.equal(one.state[name], other.state[name]) for name in one.state)


def test_a_round_of_empty_clients_alone_leaves_the_model_as_it_is():
    empty = tuple(range(1, 8))
    with collect() as events:
        result = run(
            tiny(fleet=FleetSettings(clients=8, per_round=1, levels="a-c"), seed=3), partition=shares(empty=empty)
        )
    lines = [line for line in result.rounds if not line["clients"]]
    assert lines
    assert all(line["empty"] == 1 and line["train_loss"] is None for line in lines)
    assert any("nobody takes part (none of those drawn has samples)" in event.message for event in events)


@pytest.mark.parametrize("method", [name for name in names() if name not in ("nefl", "depthfl", "lora")])
def test_every_method_with_empty_clients(method):
    data = Data(name="digits", min_samples=0, public_share=0.02 if method in WITH_PUBLIC else 0.0)
    options = {"every": 1, "epochs": 1} if method.startswith("fedmorph") else {}
    options |= {"steps": 4} if method in ("feddf", "fed-et") else {}
    result = run(tiny(method=method, data=data, options=options, rounds=1), partition=shares())
    assert result.rounds[0]["empty"]


def test_statistics_are_asked_of_clients_with_samples():
    empty = tuple(range(1, 8))
    experiment = tiny(evaluate=Evaluate(norm_clients=1, samples=60))
    simulation = simulate(Overrides(experiment, partition=shares(empty=empty)))
    chosen = {
        _choose_clients(simulation.setup, simulation.data, experiment.evaluate, round=round) for round in range(20)
    }
    assert chosen == {(0,)}
    assert run(experiment, partition=shares(empty=empty)).summary["final"]["global_accuracy"] is not None


def test_all_clients_empty_is_refused():
    with pytest.raises(NestlingError, match="no client has any of the training samples"):
        run(tiny(), partition=shares(empty=tuple(range(8))))


def test_settings_alone_allow_empty_clients():
    data = Data(name="digits", max_samples=100, partition="dirichlet", alpha=0.02, min_samples=0)
    fleet = FleetSettings(clients=20, per_round=20, levels="a")
    result = run(tiny(data=data, fleet=fleet, rounds=1, local=LocalTraining(epochs=1)))
    assert 0 < result.rounds[0]["empty"] == sum(not len(held) for held in result.simulation.partition.train)


def _read(user):
    return torch.randint(6, (3 if user % 3 else 0, 6), generator=torch.Generator().manual_seed(user))


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [None, [3 if user % 3 else 0 for user in range(30)]])
def test_users_who_wrote_nothing(sizes):
    counts = None if sizes is None else np.array(sizes)
    words = Vocabulary(tuple("abcdef"))
    text = Text("mine", "next-word", words, 5, users=Lazy(30, _read), sizes=counts, test=[_read(1)])
    settings = ["rounds=1", "fleet.clients=30", "fleet.per_round=12", "model.options.width=8"]
    experiment = find("fedrolex-words").with_settings(settings)
    result = nestling.run(experiment.with_settings(["data.min_samples=0"]), dataset=text)
    assert result.rounds[0]["empty"] > 0
    assert result.rounds[0]["empty"] + result.rounds[0]["clients"] == 12
    with pytest.raises(NestlingError, match=r"has no words|with at least 1 sequences"):
        nestling.run(experiment, dataset=text)
