"""The research loop that rounds are compared with does the same work as they do, and so does the floor."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from bench.rounds.floor import Floor, bare, steps
from bench.rounds.ours import PHASES, Ours, Profiled
from bench.rounds.research import Research
from bench.rounds.workloads import WORKLOADS, find, prepare, read
from nestling.experiment.simulator import Simulator
from nestling.server.state import ServerState
from tests.bench.bench_cases import IMAGES, close, double, in_double
from tests.harness import engine_of, train_job, worker_of

pytestmark = pytest.mark.slow


@pytest.fixture(name="double")
def _double():
    with double():
        yield


def test_a_round_makes_the_same_model_and_the_same_figures(double):
    simulation = in_double(IMAGES)
    assert len({simulation.fleet.level(client, 1).ratio for client in simulation.fleet.sample(1)}) == 5
    setup = simulation.setup
    research, state = Research(simulation), ServerState.start(setup)
    simulator = Simulator(simulation, engine_of(simulation))
    for _ in range(2):
        before = state.model
        state, _ = simulator.run_round(state)
        research.play()
        assert any(not torch.equal(before[name], state.model[name]) for name in before)
        close({name: state.model[name] for name in setup.parameters}, dict(research.model.named_parameters()))
    figures, _ = simulator.evaluate(state)
    research.gather()
    assert research.test() == pytest.approx(figures["global_loss"], rel=1e-9)


def test_a_round_of_words_makes_the_same_model():
    words = find("transformer", quick=True)
    simulation = in_double(replace(words, options={**words.options, "dropout": 0.0}))  # which would draw other numbers
    research = Research(simulation)
    research.play()
    setup = simulation.setup
    state, _ = Simulator(simulation, engine_of(simulation)).run_round(ServerState.start(setup))
    close({name: state.model[name] for name in setup.parameters}, dict(research.model.named_parameters()))


WIDE = replace(IMAGES, clients=2, levels="a-b", options={"widths": (4, 4, 256, 256)})


@pytest.mark.parametrize("workload", [IMAGES, WIDE], ids=["narrow", "wide"])
def test_the_floor_takes_the_steps_of_the_clients(workload, double):
    simulation = in_double(workload)
    worker = worker_of(simulation)
    for client in simulation.fleet.sample(1):
        ratio = simulation.fleet.level(client, 1).ratio
        model = bare(simulation, ratio)
        assert all(type(module) is nn.Conv2d for module in model.modules() if isinstance(module, nn.Conv2d))
        start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        job = train_job(simulation, client, ratio, state=start, lr=simulation.settings.local.lr)
        steps(model, read(simulation, client, 1), simulation.settings.local)
        close(worker(job).state, model.state_dict())


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_workload_can_be_played(name):
    simulation = prepare(find(name, quick=True))
    assert len(simulation.fleet.sample(1)) == len(simulation.fleet.sample(2)) == simulation.fleet.clients
    for system in (Floor(simulation), Research(simulation), Ours(simulation)):
        times = system.turn()
        assert all(seconds > 0 for what, seconds in times.items() if what == "round")
    times = Profiled(simulation).turn()
    assert tuple(times) == PHASES
    assert all(times[phase] > 0 for phase in ("plan", "extract", "load", "train", "merge", "rest", "evaluate", "write"))
    assert (times["statistics"] > 0) == bool(simulation.setup.norm_statistics)
