"""A run directory is enough: models are loaded without the data, and a federated run is continued from it."""

import json

import pytest
import torch
from torch import nn

import nestling
from nestling.data import load as load_data
from nestling.errors import NestlingError
from nestling.experiment import federated_data, find
from nestling.experiment.directory import STATISTICS
from tests.experiment import own_source
from tests.experiment.own_families import Reader, dealt, digits
from tests.run_cases import same_state, small, tiny

FEW = {"method": "heterofl", "levels": "a-b", "rounds": 2, "per_round": 4}


@pytest.fixture
def no_data(monkeypatch):
    """Nothing can be read or downloaded: whoever asks for data fails."""

    def fail(*args, **kwargs):
        raise AssertionError("the data was asked for")

    def forbid():
        monkeypatch.setattr(federated_data, "load", fail)
        monkeypatch.setattr(federated_data, "load_text", fail)
        monkeypatch.setattr(federated_data, "own_data", fail)

    return forbid


@pytest.mark.parametrize("method", ["heterofl", "fedavg", "fedrolex", "lg-fedavg", "nefl", "fedpruned"])
def test_submodels_of_presets_need_no_data(method, tmp_path, no_data):
    changes = {"model": small().model, "rounds": 1, "evaluate": small().evaluate}
    if method == "nefl":
        changes["model"] = type(changes["model"])(name="resnet8")
    result = nestling.run(tiny(method=method, **changes), out=tmp_path / "run")
    measured = {level: nestling.load(tmp_path / "run").submodel(level) for level in result.simulation.levels}
    data = load_data("digits")
    if method not in ("lg-fedavg",):
        for level, model in measured.items():
            with torch.no_grad():
                right = model(data.ready(data.test_inputs[:100])).argmax(1) == data.test_targets[:100]
            accuracy = result.summary["final"]["submodels"][level]["accuracy"]
            assert right.double().mean().item() == pytest.approx(accuracy)
    no_data()
    loaded = nestling.load(tmp_path / "run")
    for level in result.simulation.levels:
        assert same_state(loaded.submodel(level).state_dict(), measured[level].state_dict())
    loaded.submodel("full")


def test_statistics_of_the_file_are_those_that_clients_measure(tmp_path):
    nestling.run(tiny(model=small().model, method="heterofl", rounds=2), out=tmp_path / "run")
    saved = nestling.load(tmp_path / "run").submodel("b").state_dict()
    (tmp_path / "run" / STATISTICS).unlink()
    measured = nestling.load(tmp_path / "run").submodel("b").state_dict()
    assert any("running_mean" in name for name in saved)
    assert same_state(saved, measured)


def test_words_need_no_data(tmp_path, no_data):
    experiment = find("fedrolex-words").with_settings(["rounds=1", "fleet.per_round=2", "fleet.levels=a-c"])
    nestling.run(experiment, out=tmp_path / "run")
    no_data()
    model = nestling.load(tmp_path / "run").submodel("c")
    assert model(torch.zeros(1, 5, dtype=torch.long)).dim() == 3


def test_own_models_are_handed_in_again_and_own_data_is_not(tmp_path, no_data):
    images, classes = digits()
    parts, test = dealt(8, images[:400], classes[:400]), (images[1500:], classes[1500:])
    torch.manual_seed(0)
    result = nestling.federate(Reader(8, 10, 8), parts, test, **FEW, out=tmp_path / "run")
    no_data()
    small_model = nestling.load(tmp_path / "run", model=Reader(8, 10, 8)).submodel("b")
    assert same_state(small_model.state_dict(), result.submodel("b").state_dict())
    with pytest.raises(NestlingError, match=r"its own model \(Reader\), which must be handed in again"):
        nestling.load(tmp_path / "run")
    with pytest.raises(NestlingError, match="is not the one that"):
        nestling.load(tmp_path / "run", model=Reader(8, 10, 9))


def test_models_by_name_are_made_again(tmp_path, no_data):
    names = ["data.name=tests.experiment.own_source:with_own_loss", "model.name=tests.experiment.own_source:net"]
    changes = ["options.masked=false", "fleet.clients=8", "fleet.per_round=4", "rounds=1", "fleet.levels=a-b"]
    result = nestling.run(find("heterofl-digits").with_settings([*names, *changes]), out=tmp_path / "run")
    no_data()
    model = nestling.load(tmp_path / "run").submodel("full")
    assert same_state({**model.state_dict()}, {**result.state, **_statistics(model)})
    assert nestling.load(tmp_path / "run").summary["metrics"][0]["name"] == "hits"


def _statistics(model):
    return {name: tensor for name, tensor in model.state_dict().items() if "running" in name}


def test_a_run_without_a_record_of_its_data_opens_the_data(tmp_path):
    result = nestling.run(tiny(model=small().model, rounds=1), out=tmp_path / "run")
    identity = json.loads((tmp_path / "run" / "identity.json").read_text())
    assert identity.pop("data")["classes"] == 10
    (tmp_path / "run" / "identity.json").write_text(json.dumps(identity))
    model = nestling.load(tmp_path / "run").submodel("a")
    assert all(
        torch.equal(model.state_dict()[name], value) for name, value in result.state.items() if "running" not in name
    )


# ---- federate, called again


def once(folder, rounds=3, change=0.0, **more):
    images, classes = digits()
    parts, test = dealt(8, images[:400, None] + change, classes[:400]), (images[1500:, None], classes[1500:])
    return nestling.federate(own_source.net(), parts, test, **FEW | {"rounds": rounds}, **more, out=folder)


def test_the_same_call_goes_on_with_a_run(tmp_path):
    whole = once(tmp_path / "whole")
    first = once(tmp_path / "run", rounds=2)
    assert first.directory == tmp_path / "run"
    longer = once(tmp_path / "run", rounds=3)
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == (tmp_path / "whole" / "metrics.jsonl").read_bytes()
    assert same_state(longer.model.state_dict(), whole.model.state_dict())
    again = once(tmp_path / "run", rounds=3)
    assert again.summary == longer.summary
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("run", "whole")]
    assert models[0] == models[1]


def test_another_call_is_refused(tmp_path):
    once(tmp_path / "run", rounds=1)
    with pytest.raises(NestlingError, match="the dataset 'own data' is not the one"):
        once(tmp_path / "run", rounds=2, change=0.01)
    with pytest.raises(NestlingError, match=r"cannot go on with other settings than it began with .*local.lr is 0.1"):
        once(tmp_path / "run", rounds=1, lr=0.1)


def test_nothing_is_written_without_a_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = once(None, rounds=1)
    assert result.directory is None
    assert not list(tmp_path.iterdir())
    assert isinstance(result.model, nn.Module)
    assert sorted(result.levels) == ["a", "b"]


def test_a_call_that_is_refused_leaves_no_directory(tmp_path):
    images, classes = digits()
    part = images[:50], classes[:50]
    with pytest.raises(NestlingError):
        nestling.federate(nn.Linear(3, 3), [part], part, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
