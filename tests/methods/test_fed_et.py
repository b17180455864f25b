"""Fed-ET: a larger model at the server, sizes that have most layers for themselves, and that it learns."""

import pytest
import torch

from nestling.cut.extract import cuts
from nestling.experiment import find, run
from nestling.settings import Data, FleetSettings
from tests.harness import rounds_of
from tests.run_cases import LEARNING, same_state, tiny

DATA = Data(name="digits", max_samples=160, public_share=0.25)
SMALLER = FleetSettings(clients=4, per_round=4, levels="b-c")


def taught(rounds=2, **options):
    options = {"steps": 5, "batch": 16, "lr": 0.05, **options}
    return rounds_of(tiny(method="fed-et", data=DATA, fleet=SMALLER, rounds=rounds, options=options))


def test_the_servers_model_is_larger_than_its_clients_and_learns_all_over():
    simulation, states, _ = taught()
    setup = simulation.setup
    server = states[2].global_model(setup)
    assert {name: value.shape for name, value in server.items()} == {
        name: value.shape for name, value in setup.model.state_dict().items()
    }
    held = cuts(setup.axes, setup.submodel_plan(0.5))
    for name in setup.parameters:
        changed = server[name] != states[0].model[name]
        inside = torch.zeros_like(changed)
        held[name].put(inside, torch.ones(held[name].shape, dtype=torch.bool))
        if not inside.all():
            assert changed[~inside].any(), name  # of what no client holds


@pytest.mark.parametrize("layers", [0, 1])
def test_small_models_get_their_slice_of_the_layers_before_the_last(layers):
    simulation, states, _ = taught(layers=layers)
    setup = simulation.setup
    server, shared = states[2].global_model(setup), setup.parameters - setup.per_submodel
    assert bool(shared) == bool(layers)
    assert all("linear" not in name for name in shared)
    plan = setup.submodel_plan(0.25)
    small = states[2].download(setup, plan)
    for name, cut in cuts(setup.axes, plan).items():
        if name in shared:
            assert torch.equal(small[name], cut.take(server[name]))
        elif name in setup.parameters:
            assert torch.equal(small[name], states[2].submodels[plan.key][name])


def test_models_of_one_size_are_averaged():
    """One client of the size a round: its model is the average."""
    fleet = FleetSettings(clients=2, per_round=2, levels="b-c")
    simulation, states, _ = rounds_of(
        tiny(method="fed-et", data=DATA, fleet=fleet, rounds=1, options={"steps": 2, "layers": 0})
    )
    setup = simulation.setup
    assert set(states[1].submodels) == {setup.submodel_plan(ratio).key for ratio in (0.5, 0.25)}
    assert same_state(states[1].model, states[0].model)


def test_the_diversity_term_changes_what_the_server_learns():
    with_it, without = (taught(rounds=1, diversity=weight)[1][1].method_state for weight in (0.05, 0.0))
    assert not same_state(with_it, without)


@pytest.mark.slow
def test_it_learns():
    final = run(find("fed-et-digits").with_settings(LEARNING)).summary["final"]
    assert final["global_accuracy"] > 0.8
