"""`nestling.load`: a run directory read again, and nothing of it changed."""

import shutil

import pytest
import torch
from torch import nn

import nestling
from nestling.data import load as load_data
from nestling.errors import NestlingError
from nestling.settings import Evaluate, Model
from tests.run_cases import small

TINY = {
    "rounds": 2,
    "model": Model(name="cnn", options={"widths": [4, 4]}),
    "evaluate": Evaluate(every=2, samples=50),
    "checkpoint_every": 1,
}


def everything(folder):
    return {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_run_is_read_and_left_as_it_is(tmp_path):
    result = nestling.run(small(method="lg-fedavg", **TINY), out=tmp_path / "run")
    (tmp_path / "run" / "private" / "99-1.safetensors").write_bytes(b"of a round that is being played")
    before = everything(tmp_path / "run")
    loaded = nestling.load(tmp_path / "run")
    assert (loaded.round, loaded.summary["final"]) == (2, result.summary["final"])
    assert loaded.levels == result.simulation.levels
    assert loaded.experiment == result.simulation.settings
    loaded.submodel()
    assert everything(tmp_path / "run") == before


def test_what_submodels_answer_is_what_was_tested(tmp_path):
    result = nestling.run(small(**TINY), out=tmp_path / "run")
    loaded, data = nestling.load(tmp_path / "run"), load_data("digits")
    for level in ("a", "b", "d"):
        model = loaded.submodel(level=level)
        assert isinstance(model, nn.Module)
        assert not model.training
        with torch.no_grad():
            right = model(data.ready(data.test_inputs[:50])).argmax(1) == data.test_targets[:50]
        assert right.double().mean().item() == pytest.approx(result.summary["final"]["submodels"][level]["accuracy"])
    with pytest.raises(NestlingError, match="the run has no level 'c'"):
        loaded.submodel(level="c")


def test_models_and_data_of_ones_own_are_given_again(tmp_path):
    def own():
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))

    result = nestling.run(small(**TINY), model=own(), out=tmp_path / "run")
    loaded = nestling.load(tmp_path / "run", model=own())
    state = loaded.submodel().state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in result.state.items())


def test_directories_that_hold_no_run(tmp_path):
    with pytest.raises(NestlingError, match="is not a run directory"):
        nestling.load(tmp_path)
    nestling.run(small(**TINY), out=tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    with pytest.raises(NestlingError, match="holds no checkpoint yet"):
        nestling.load(tmp_path / "run")


def test_a_run_that_is_not_over_has_no_summary(tmp_path):
    nestling.run(small(**TINY), out=tmp_path / "run")
    (tmp_path / "run" / "summary.json").unlink()
    assert nestling.load(tmp_path / "run").summary == {}
