"""Differential privacy on devices: a simulation's rounds, ε without sampling, and noise that no device can compute."""

from dataclasses import replace

import pytest
import torch

from nestling.errors import NestlingError
from nestling.events import collect
from nestling.experiment import resume, run
from nestling.experiment.device_run import run_on_devices
from nestling.experiment.private_devices import on_devices
from nestling.experiment.simulation import Overrides, simulate
from nestling.fleet import Fleet, Participation, parse_mix
from nestling.flower.nodes import RoundRules
from nestling.methods.privacy.accounting import Accountant
from nestling.methods.privacy.noised_sum import noise_stream
from tests.flower.loopback import Loopback, experiment
from tests.quick import mostly_slow

pytest.importorskip("dp_accounting")
RULES = RoundRules(poll=0.01, wait=0.2, deadline=60.0, norm_bound=0.0)
SMALL = ["model.options.norm=gn", "options.masked=false", "fleet.clients=6", "fleet.per_round=4", "rounds=1"]
SMALL += ["data.max_samples=120", "model.width=0.125"]


def private(part, *settings):
    return experiment(*SMALL, f"parts=dp:{part}", *settings)


def on_loopback(settings, out, *, rules=RULES, faults=None):
    return run_on_devices(settings, Loopback(settings, 6, faults), rules, out=out, own_data=False)


def fails(_request, _packet):
    raise ValueError("out of battery")


def test_without_noise_rounds_are_those_of_the_simulation_and_go_on_on_devices_alone(tmp_path):
    settings = private("clip=1e6:noise=0")
    with collect():
        simulated = run(settings, out=tmp_path / "simulated")
        deployed = on_loopback(settings, tmp_path / "deployed")
    for name, tensor in simulated.state.items():
        assert torch.equal(deployed.state[name], tensor), name
    assert deployed.rounds[0]["clients"] == 4
    longer = settings.with_settings(["rounds=2"])
    with pytest.raises(NestlingError, match="began in simulation"), collect():
        on_loopback(longer, tmp_path / "simulated")
    with pytest.raises(NestlingError, match="began on devices"), collect():
        resume(tmp_path / "deployed", rounds=2)
    with collect():
        assert on_loopback(longer, tmp_path / "deployed").summary["rounds_done"] == 2


def test_who_does_not_reply_leaves_the_denominators_as_they_are(tmp_path):
    """The change of all is the sum of the changes of two halves: nothing is divided by who replied."""
    settings = private("clip=0.05:noise=0", "fleet.per_round=6")
    with collect():
        start = simulate(Overrides(settings)).setup
        runs = [
            on_loopback(settings, tmp_path / name, faults=dict.fromkeys(lost, fails))
            for name, lost in {"all": (), "even": (1, 3, 5), "odd": (0, 2, 4)}.items()
        ]
    assert [result.rounds[0]["clients"] for result in runs] == [6, 3, 3]
    for name in start.parameters:
        before = start.model.state_dict()[name].double()
        whole, *halves = (result.state[name].double() - before for result in runs)
        torch.testing.assert_close(whole, sum(halves), rtol=0, atol=1e-6)


def test_epsilon_is_that_of_gaussians_that_everybody_takes_part_in(tmp_path):
    result = on_loopback(private("clip=0.1:noise=4:delta=0.01:quantile=0.5", "rounds=2"), tmp_path / "run")
    spent = result.rounds[-1]["privacy"]
    orders = [1 + k / 10 for k in range(1, 100)]  # Canonne, Kamath, Steinke, 2020, Proposition 12
    closed = min(
        2 * a / (2 * 4.0**2) + torch.tensor(1 - 1 / a).log().item() - torch.tensor(0.01 * a).log().item() / (a - 1)
        for a in orders
    )
    assert spent["epsilon"] == pytest.approx(closed, rel=1e-3)
    assert spent["adjacency"] == "add-or-remove-one, no sampling assumed"


def test_no_sampling_is_as_everybody():
    fleet = Participation.of(Fleet(1000, 10, parse_mix("a-c")))
    unsampled = Accountant.of(replace(fleet, sampled=False), real_counts=False)
    everybody = Accountant(1000, 1000, poisson=False, adjacency="add-or-remove-one")
    assert unsampled.epsilon(5.0, 10, 1e-4) == everybody.epsilon(5.0, 10, 1e-4)
    assert unsampled.epsilon(5.0, 10, 1e-4) > Accountant.of(replace(fleet, poisson=True), False).epsilon(5.0, 10, 1e-4)


def test_noise_is_not_that_of_the_seed_which_devices_know():
    setup = simulate(Overrides(private("noise=1"))).setup
    drawn = [
        torch.randn(3, generator=noise_stream(one, "privacy", 1)) for one in (setup, *map(on_devices, [setup] * 2))
    ]
    assert len({tuple(values.tolist()) for values in drawn}) == 3
    assert on_devices(setup).secret not in repr(on_devices(setup))


@pytest.mark.parametrize(
    ("part", "settings", "rules", "words"),
    mostly_slow(
        [
            ("noise=1", [], replace(RULES, norm_bound=5.0), "set norm-bound=0"),
            ("noise=1:counts=real", [], RULES, "counts=real needs as many clients in every round"),
            ("noise=1", ["fleet.over_selection=1.25"], RULES, "set fleet.over_selection=1"),
            ("noise=1", ["fleet.sampling=poisson"], RULES, "set fleet.sampling=fixed"),
            ("noise=1", ["evaluate.local=own-data"], RULES, "dp does not go with evaluate.local=own-data on devices"),
            ("noise=1", ["method=lg-fedavg"], RULES, "dp does not go with lg-fedavg on devices"),
        ],
        quick=2,
    ),
)
def test_what_would_let_a_client_change_more_is_refused_in_one_sentence(tmp_path, part, settings, rules, words):
    with pytest.raises(NestlingError) as caught:
        on_loopback(private(part, *settings), tmp_path / "run", rules=rules)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
