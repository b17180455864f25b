"""Federated Select: clients receive the rows of their own words alone; fewer bytes, the same result."""

import pytest
import torch

import nestling
from nestling.cut import Plan, cost
from nestling.experiment.simulation import Overrides, simulate
from nestling.server.state import ServerState
from nestling.settings import Data, FleetSettings, LocalTraining
from tests.harness import train_job
from tests.quick import mostly_slow
from tests.run_cases import small as images
from tests.words_cases import MLM, NWP, double, masked, small


@pytest.mark.parametrize(
    ("method", "name", "task"),
    mostly_slow(
        [
            ("fedavg", MLM, "masked-word"),
            ("heterofl", NWP, "next-word"),
            ("fedrolex", MLM, "masked-word"),
            ("fed-dropout", NWP, "next-word"),
        ],
        quick=2,
    ),
)
def test_the_result_is_that_of_the_masked_loss(method, name, task):
    """To the last bits of double precision, over several rounds, with momentum, weight decay, clipping and dropout."""
    experiment = (small if task == "next-word" else masked)(
        method=method, options={"masked": True}, local=LocalTraining(lr=0.3, epochs=2, batch_size=4)
    )
    net = double(name, task, dropout=0.1)
    plain, chosen = (
        nestling.run(experiment.with_settings([f"select_rows={select}"]), model=net) for select in ("false", "true")
    )
    for tensor, wanted in plain.state.items():
        assert torch.allclose(chosen.state[tensor], wanted, rtol=1e-9, atol=1e-12), tensor
    for one, other in zip(plain.rounds, chosen.rounds, strict=True):
        assert other["train_loss"] == pytest.approx(one["train_loss"], rel=1e-10)
        assert other["train_accuracy"] == one["train_accuracy"]
    assert chosen.summary["bytes_down"] < 0.6 * plain.summary["bytes_down"]
    assert chosen.summary["client_macs"] < plain.summary["client_macs"]


def test_classes_of_images_may_be_selected_too():
    data = Data(name="digits", partition="classes", classes_per_client=2, max_samples=400)
    plain, chosen = (nestling.run(images(data=data, select_rows=select)) for select in (False, True))
    for tensor, wanted in plain.state.items():
        assert torch.allclose(chosen.state[tensor], wanted, rtol=1e-3, atol=1e-4), tensor
    assert chosen.summary["bytes_down"] < plain.summary["bytes_down"]


def test_a_clients_plan_holds_its_words_and_the_special_ones():
    simulation = simulate(
        Overrides(masked(select_rows=True, fleet=FleetSettings(clients=1000, per_round=6, levels="b")))
    )
    client = 17
    job = train_job(simulation, client, 0.5).job
    plan, setup = job.plan, simulation.setup
    words = simulation.partition.labels[client]
    assert plan.index("head").tolist() == words.tolist()
    assert plan.index("token.0").tolist() == [*words.tolist(), 200, 201]
    assert {0, 1, 2} <= set(words.tolist())
    others = Plan({name: plan.index(name) for name in plan.runs if name not in ("head", "token.0")}, key=plan.key)
    assert others == setup.method.plan.plan(ServerState.start(setup).context(setup), job.who)


@pytest.mark.parametrize("level", [1.0, 0.25])
def test_costs_of_fewer_rows_are_those_of_the_model_that_is_built(level):
    simulation = simulate(Overrides(small(select_rows=True)))
    for client in (3, 4):
        plan = train_job(simulation, client, level).job.plan
        wanted = cost(
            simulation.setup.model,
            simulation.setup.cut_axes,
            plan,
            simulation.setup.example[:1],
            batch=simulation.settings.local.batch_size,
        )
        actual = simulation.costs.cost(plan)
        assert (actual.parameters, actual.bytes, actual.macs) == (wanted.parameters, wanted.bytes, wanted.macs)
        assert actual.memory == pytest.approx(wanted.memory, rel=0.05)


def test_a_client_that_holds_everything_gets_everything():
    data = Data(name="digits", max_samples=400)
    simulation = simulate(Overrides(images(data=data, select_rows=True)))
    assert train_job(simulation, 2, 1.0).job.plan == Plan(key="full")


def test_uploads_may_be_encoded_and_devices_timed():
    """Fewer rows and fewer values of them, with what was left out remembered by row."""
    fleet = FleetSettings(clients=8, per_round=6, levels="a-b", devices="laptop:1,phone-high:1")
    settings = ["upload.format=topk", "upload.fraction=0.25", "upload.feedback=true", "rounds=3"]
    experiment = small(select_rows=True, fleet=fleet).with_settings(settings)
    result = nestling.run(experiment, model=double())
    assert 0 < result.summary["bytes_up"] < 0.5 * result.summary["bytes_down"]
    assert result.summary["simulated_seconds"] > 0
