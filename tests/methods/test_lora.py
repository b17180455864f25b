"""LoRA: which units of a rank clients train, what stays frozen, and that small ranks learn."""

import math

import pytest
import torch
from torch import nn

import nestling
from nestling.errors import MethodError
from nestling.experiment import find, run
from nestling.methods import make
from nestling.methods.lora import lora
from nestling.nets import build, example
from nestling.nets.adapted import AdaptedLinear
from tests.harness import plan_of, rounds_of, setup_of, submodel_plan_of
from tests.run_cases import same_state

QUICK = ["rounds=4", "evaluate.every=4", "fleet.clients=8", "fleet.per_round=4", "fleet.levels=a-b-c-d"]


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    net = build("mlp", size=8, widths=[12, 9], rank=5)
    return net, nestling.trace(net, *example("mlp", size=8, widths=[12, 9], rank=5))


def test_ranks_are_named_axes_beside_those_of_the_model(net):
    axes = net[1]
    assert axes.axes == {
        "linear1": 12,
        "linear1.lora.rank": 5,
        "linear2": 9,
        "linear2.lora.rank": 5,
        "head.lora.rank": 5,
    }
    assert str(axes.dims["linear2.lora_B"]) == "linear2 linear2.lora.rank"
    nestling.check(*net, *example("mlp", size=8, widths=[12, 9], rank=5)).raise_if_bad()


@pytest.mark.parametrize("pick", ["prefix", "rolling", "random"])
@pytest.mark.parametrize("ratio", [1.0, 0.5, 0.3, 0.01])
def test_a_level_is_a_share_of_the_rank_and_of_nothing_else(net, pick, ratio):
    axes = net[1]
    plan = plan_of(lora(pick), axes, ratio, round=3, model=net[0])
    count = math.ceil(5 * ratio)
    sizes = {name: plan.sizes.get(name, size) for name, size in axes.axes.items()}
    assert sizes == {name: count if name.endswith("rank") else size for name, size in axes.axes.items()}
    assert submodel_plan_of(lora(pick), axes, ratio, model=net[0]).sizes == plan.sizes
    if pick == "prefix":
        assert all(plan.index(name).tolist() == list(range(count)) for name in plan.runs)
    assert plan.key == ("full" if ratio == 1 else f"w{ratio!r}")


def test_windows_of_the_rank_roll(net):
    seen = [plan_of(lora("rolling"), net[1], 0.4, round, model=net[0]).index("head.lora.rank") for round in range(1, 6)]
    assert [units.tolist() for units in seen] == [[0, 1], [1, 2], [2, 3], [3, 4], [0, 4]]
    again = plan_of(lora("rolling", step=2), net[1], 0.4, 2, model=net[0]).index("head.lora.rank")
    assert again.tolist() == [2, 3]


def test_random_units_differ_by_client(net):
    sets = {plan_of(lora("random"), net[1], 0.4, 1, client, model=net[0]) for client in range(9)}
    assert len(sets) > 1


def test_an_adapter_that_is_frozen_keeps_its_rank():
    net = nn.Sequential(AdaptedLinear(4, 6, rank=4), nn.ReLU(), AdaptedLinear(6, 3, rank=4))
    net[0].requires_grad_(False)
    axes = nestling.trace(net, torch.zeros(1, 4))
    plan = plan_of(lora(), axes, 0.5, model=net)
    assert plan.sizes == {"model.2.lora.rank": 2}


def test_a_model_without_adapters_is_refused():
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    with pytest.raises(MethodError, match="cuts the rank of low-rank adapters, and the model has none") as caught:
        lora().check(setup_of(net, nestling.trace(net, torch.zeros(1, 4)), lora()), None)
    assert "get_peft_model" in str(caught.value)


def test_a_window_does_not_move_back():
    with pytest.raises(MethodError, match="0 or more units a round, not -1"):
        make("lora", {"step": -1})


def test_a_sub_model_computes_a_part_of_the_whole_sum(net):
    """The weights that are frozen are the same, and a unit of the rank counts as much as in the whole model."""
    model, axes = net
    layer = nestling.submodel(model, axes, plan_of(lora(), axes, 0.4, model=model)).linear1
    x = torch.randn(3, 64)
    with torch.no_grad():
        nn.init.normal_(model.linear1.lora_B)
        layer = nestling.submodel(model, axes, plan_of(lora(), axes, 0.4, model=model)).linear1
        frozen = nn.functional.linear(x, model.linear1.weight, model.linear1.bias)
        part = frozen + x @ model.linear1.lora_A[:2].T @ model.linear1.lora_B[:, :2].T
        torch.testing.assert_close(layer(x), part)


def test_the_client_of_the_whole_rank_gets_the_global_model():
    simulation, states, _ = rounds_of(find("lora-digits").with_settings([*QUICK, "rounds=1", "local.epochs=1"]))
    setup, state = simulation.setup, states[-1]
    plan = setup.submodel_plan(1.0)
    assert plan.key == "full"
    sent = state.download(setup, plan)
    assert same_state(sent, state.model)


@pytest.mark.parametrize("merge", ["product", "factors"])
def test_small_ranks_learn_and_frozen_weights_stay(merge):
    experiment = find("lora-digits").with_settings([*QUICK, f"options.merge={merge}"])
    simulation, states, _ = rounds_of(experiment.with_settings(["rounds=1", "local.epochs=1"]))
    frozen = simulation.setup.user_frozen
    assert {name for name in states[0].model if "lora" not in name} == frozen
    assert all(torch.equal(states[0].model[name], states[1].model[name]) for name in frozen)
    result = run(experiment)
    accuracies = {name: figures["accuracy"] for name, figures in result.summary["final"]["submodels"].items()}
    assert set(accuracies) == {"a", "b", "c", "d"}
    assert min(accuracies.values()) > 0.1 + 2 * math.sqrt(0.09 / 359), accuracies
    sizes = sum(states[0].model[name].nbytes for name in frozen)
    handed = result.summary["bytes_setup"]
    assert handed % sizes == 0  # whole, and once for every client that took part
    assert 4 <= handed // sizes <= 8
