"""`nestling.load(DIR).submodel(budget=…)`: the size that fits, with what belongs to that size."""

import pytest
import torch

import nestling
from nestling.data import load as load_data
from nestling.errors import NestlingError
from nestling.settings import Evaluate, Model
from tests.run_cases import small

TINY = {"rounds": 1, "evaluate": Evaluate(every=1, samples=50)}
RESNET = Model(name="resnet8", options={"widths": [4, 8, 8, 16], "learn_steps": True})


def bytes_of(model):
    return sum(tensor.nbytes for tensor in model.state_dict().values())


@pytest.fixture(scope="module")
def heterofl(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "heterofl"
    return nestling.run(small(**TINY), out=folder), folder


def test_the_largest_slice_that_fits(heterofl):
    _, folder = heterofl
    loaded = nestling.load(folder)
    sizes = [bytes_of(loaded.submodel(level)) for level in ("d", "b", "a")]
    budget = (sizes[1] + sizes[2]) // 2
    choice = loaded.choose(f"{budget} B")
    model = loaded.submodel(budget=f"{budget} B")
    assert not choice.trained
    assert 0.5 < choice.level.ratio < 1
    assert sizes[1] < bytes_of(model) == choice.size.bytes <= budget
    larger = loaded._simulation.setup.submodel_plan(choice.level.ratio + 1e-4)
    assert loaded._simulation.costs.cost(larger).bytes > budget


def test_a_budget_that_a_level_just_meets_gives_that_level(heterofl):
    result, folder = heterofl
    loaded, data = nestling.load(folder), load_data("digits")
    size = bytes_of(loaded.submodel("b"))
    assert loaded.choose(f"{size} B").trained
    assert loaded.choose(f"{size} B").level.name == "b"
    model = loaded.submodel(budget=f"{size} B")
    with torch.no_grad():
        right = model(data.ready(data.test_inputs[:50])).argmax(1) == data.test_targets[:50]
    assert right.double().mean().item() == pytest.approx(result.summary["final"]["submodels"]["b"]["accuracy"])


def test_bad_requests(heterofl):
    loaded = nestling.load(heterofl[1])
    with pytest.raises(NestlingError, match="a level or a budget, not both"):
        loaded.submodel("a", budget="2 MB")
    with pytest.raises(NestlingError, match="no sub-model meets the budget 10 B: the smallest possible has"):
        loaded.submodel(budget="10 B")
    with pytest.raises(NestlingError, match="cannot be read"):
        loaded.submodel(budget="small")


@pytest.mark.slow
def test_nefl_gives_the_largest_trained_submodel_with_its_own_norms_and_steps(tmp_path):
    experiment = small(method="nefl", model=RESNET, **TINY).with_settings(
        ["fleet.levels=0.3-0.6-1", "fleet.per_round=8"]
    )
    nestling.run(experiment, out=tmp_path / "run")
    loaded = nestling.load(tmp_path / "run")
    setup, state = loaded._simulation.setup, loaded._state
    for level, next_larger in (("0.3", "0.6"), ("0.6", "1")):
        plan = setup.submodel_plan(float(level))
        limit = bytes_of(loaded.submodel(loaded_name(loaded, next_larger))) - 1
        choice = loaded.choose(f"{limit} B")
        assert (choice.level.ratio, choice.trained, choice.size.plan) == (float(level), True, plan)
        tensors = loaded.submodel(budget=f"{limit} B").state_dict()
        own = state.submodels[plan.key]
        assert any(name.endswith(".step") for name in own)
        assert any(name.endswith("running_mean") for name in own)
        assert all(torch.equal(tensors[name], value) for name, value in own.items())
        whole = state.submodels["full"]  # what belongs to the whole model is different
        steps = [name for name in own if name.endswith(".step")]
        assert any(not torch.equal(own[name], whole[name]) for name in steps)
    with pytest.raises(NestlingError, match=r"nefl trained its levels alone, and the smallest, '0\.3', has"):
        loaded.choose("1 kB")


def test_a_level_that_nobody_trained_is_not_chosen(tmp_path):
    experiment = small(method="nefl", model=RESNET, **TINY)
    settings = ["fleet.levels=0.3:1,0.6:1,1:6", "fleet.per_round=1"]
    nestling.run(experiment.with_settings(settings), out=tmp_path / "run")
    loaded = nestling.load(tmp_path / "run")
    (trained,) = loaded._state.submodels  # of the one client that took part
    assert loaded.choose("1 GB").size.plan.key == trained == "full"
    limit = loaded.selected("full").size.bytes - 1
    with pytest.raises(NestlingError, match="nefl trained its levels alone, and the smallest, '1', has"):
        loaded.choose(f"{limit} B")


def loaded_name(loaded, level):
    return next(name for name, ratio in loaded.levels.items() if ratio == float(level))


def test_a_method_of_one_size_has_that_size_alone(tmp_path):
    nestling.run(small(method="fedavg", **TINY), out=tmp_path / "run")
    loaded = nestling.load(tmp_path / "run")
    assert loaded.choose("1 GB").size.plan.key == "full"
    with pytest.raises(NestlingError, match="fedavg trained one size alone"):
        loaded.choose("5 kB")


def test_time_is_measured_where_it_is_limited(heterofl):
    choice = nestling.load(heterofl[1]).choose("60 s per step")
    assert choice.size.plan.key == "full"
    assert 0 < choice.size.seconds < 60
