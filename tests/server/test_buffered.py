"""Buffered asynchronous steps: the merge against plain NumPy, and synchronous rounds where nobody is late."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import nestling
from nestling.cut import extract
from nestling.cut.extract import cuts
from nestling.cut.slices import places_of
from nestling.experiment.simulation import Overrides, simulate
from nestling.experiment.simulator import Simulator
from nestling.methods import Participant
from nestling.methods.messages import Progress, Update
from nestling.server.aggregate import Merge
from nestling.server.buffered import discounted
from nestling.server.cost_meter import CostMeter
from nestling.server.in_flight import Flights, Version
from nestling.server.state import ServerState
from nestling.settings import ServerSettings
from tests.harness import setup_of
from tests.run_cases import same_state
from tests.server.straggler_cases import straggling

NET = torch.nn.Sequential(torch.nn.Linear(3, 6), torch.nn.ReLU(), torch.nn.Linear(6, 8), torch.nn.ReLU()).double()
AXES = nestling.trace(NET, torch.zeros(1, 3).double())
LATE = st.lists(st.tuples(st.sampled_from([0.2, 0.5, 0.7, 1.0]), st.integers(0, 3)), min_size=1, max_size=5)


def random_model(random):
    return {name: torch.randn(t.shape, generator=random, dtype=t.dtype) for name, t in NET.state_dict().items()}


@settings(deadline=None, max_examples=40)
@given(LATE, st.sampled_from([0.0, 0.5, 2.0]), st.integers(0, 100))
def test_a_coordinate_moves_by_the_mean_of_its_holders_discounted_changes(clients, exponent, seed):
    random = torch.Generator().manual_seed(seed)
    setup = setup_of(NET, AXES, server=ServerSettings(buffer=len(clients), staleness=exponent))
    models = [random_model(random) for _ in range(4)]  # of three earlier steps, and the current one
    versions = {number: Version(models[number - 1], {}) for number in (1, 2, 3)}
    before = replace(ServerState.start(setup), round=3, model=models[3], flights=Flights((), versions))
    merge = Merge(setup, before)
    total = {name: np.zeros(tensor.shape) for name, tensor in models[3].items()}
    weight = {name: np.zeros(tensor.shape) for name, tensor in models[3].items()}
    for client, (ratio, late) in enumerate(clients):
        plan, then = nestling.plan(AXES, ratio), models[3 - late]
        trained = {
            name: tensor + torch.randn(tensor.shape, generator=random, dtype=tensor.dtype)
            for name, tensor in extract(AXES, plan, then).items()
        }
        who = Participant(client, nestling.fleet.parse_level("a"), 1)
        own = float(client + 1)
        merge.add(discounted(setup, before, 4 - late, Update((who,), plan, None, trained, Progress())), own)
        for name, cut in cuts(AXES, plan).items():
            rows, columns = (np.asarray(part) for part in places_of(cut))
            held = np.add.outer(rows, columns).ravel()
            inside = np.zeros(total[name].size, bool)
            width = cut.width
            inside.reshape(-1, width)[held] = True
            change = trained[name].numpy().ravel() - then[name].numpy().ravel()[inside]
            total[name].reshape(-1)[inside] += own * (1 + late) ** -exponent * change
            weight[name].reshape(-1)[inside] += own
    for name, value in merge.value().items():
        now = models[3][name].numpy()
        expected = now + np.divide(total[name], weight[name], out=np.zeros_like(now), where=weight[name] > 0)
        np.testing.assert_allclose(value.numpy(), expected, rtol=1e-12, atol=1e-12)
        assert (value.numpy()[weight[name] == 0] == now[weight[name] == 0]).all()


def steps(experiment, count=3):
    """The states and lines of some steps."""
    simulation = simulate(Overrides(experiment))
    simulator, states, lines = Simulator(simulation), [ServerState.start(simulation.setup)], []
    for _ in range(count):
        state, line = simulator.run_round(states[-1])
        states.append(state)
        lines.append(line)
    return states[1:], lines


def assert_equal_rounds(buffered, rounds):
    for one, other in zip(buffered[0], rounds[0], strict=True):
        assert same_state(one.model, other.model)
    for one, other in zip(buffered[1], rounds[1], strict=True):
        own = ("staleness_mean", "staleness_max", "discarded", "in_training", "models_kept")
        assert {name: value for name, value in one.items() if name not in own} == other
        assert one["staleness_max"] == one["in_training"] == 0


def test_steps_that_wait_for_everybody_are_synchronous_rounds(tmp_path):
    """Clients of three speeds and two levels: each waits for the next model, so all of a step begin with one."""
    more = {"per_round": 6}
    buffered = steps(straggling(tmp_path, settings=["server.buffer=6"], **more))
    assert_equal_rounds(buffered, steps(straggling(tmp_path, **more)))


def test_steps_of_clients_that_are_equally_fast_are_synchronous_rounds(tmp_path, monkeypatch):
    monkeypatch.setattr(CostMeter, "seconds", lambda *_: 2.0)
    buffered = steps(straggling(tmp_path, settings=["server.buffer=3", "server.optimizer=fedadam", "server.lr=0.01"]))
    states, lines = steps(straggling(tmp_path, settings=["server.optimizer=fedadam", "server.lr=0.01"]))
    for number, line in enumerate(lines, start=1):
        line["simulated_seconds"] = 2.0 * number
    assert_equal_rounds(buffered, (states, lines))


@pytest.mark.slow
@pytest.mark.parametrize(
    "own",
    [
        ["method=lg-fedavg"],
        ["method=fedrolex", "parts=median"],
        ["upload.format=topk", "upload.feedback=true"],
        ["parts=clip-norm:0.1"],
        ["server.weighting=samples", "select_rows=true"],
    ],
    ids=" ".join,
)
def test_whatever_is_merged_nobody_is_late_if_all_wait(tmp_path, own):
    buffered = steps(straggling(tmp_path, per_round=6, settings=[*own, "server.buffer=6"]))
    assert_equal_rounds(buffered, steps(straggling(tmp_path, per_round=6, settings=own)))
