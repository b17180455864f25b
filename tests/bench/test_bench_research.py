"""The research loop that rounds are compared with does the same work as they do, and so does the floor."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from bench_cases import IMAGES, close, double, in_double
from torch import nn

from bench.rounds.floor import Floor, bare, steps
from bench.rounds.ours import PHASES, Ours, Profiled
from bench.rounds.research import Research
from bench.rounds.workloads import WORKLOADS, find, prepare, read
from nestling.engines import LocalEngine
from nestling.experiment.evaluation import evaluate
from nestling.experiment.jobs import Train
from nestling.experiment.round import run_round
from nestling.experiment.server import Server
from nestling.experiment.worker import Worker

pytestmark = pytest.mark.slow


@pytest.fixture(name="double")
def _double():
    with double():
        yield


def test_a_round_makes_the_same_model_and_the_same_figures(double):
    made = in_double(IMAGES)
    assert len({made.level(client, 1).ratio for client in made.sample(1)}) == 5
    research, server, engine = Research(made), Server.start(made, None), LocalEngine(lambda: Worker(made))
    for _ in range(2):
        before = server.state
        server, _ = run_round(made, server, engine)
        research.play()
        assert any(not torch.equal(before[name], server.state[name]) for name in before)
        close({name: server.state[name] for name in made.parameters}, dict(research.model.named_parameters()))
    figures, _ = evaluate(made, server, engine)
    research.gather()
    assert research.test() == pytest.approx(figures["global_loss"], rel=1e-9)


def test_a_round_of_words_makes_the_same_model():
    words = find("transformer", quick=True)
    made = in_double(replace(words, options={**words.options, "dropout": 0.0}))  # which would draw other numbers
    research = Research(made)
    research.play()
    server, _ = run_round(made, Server.start(made, None), LocalEngine(lambda: Worker(made)))
    close({name: server.state[name] for name in made.parameters}, dict(research.model.named_parameters()))


WIDE = replace(IMAGES, clients=2, levels="a-b", options={"widths": (4, 4, 256, 256)})


@pytest.mark.parametrize("workload", [IMAGES, WIDE], ids=["narrow", "wide"])
def test_the_floor_takes_the_steps_of_the_clients(workload, double):
    made = in_double(workload)
    worker = Worker(made)
    for client in made.sample(1):
        ratio = made.level(client, 1).ratio
        model = bare(made, ratio)
        assert all(type(module) is nn.Conv2d for module in model.modules() if isinstance(module, nn.Conv2d))
        start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        job = Train(client, 1, ratio, made.plan(client, ratio, 1), start, made.experiment.local.lr)
        steps(model, read(made, client, 1), made.experiment.local)
        close(worker(job).state, model.state_dict())


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_workload_can_be_played(name):
    made = prepare(find(name, quick=True))
    assert len(made.sample(1)) == len(made.sample(2)) == made.fleet.clients
    for system in (Floor(made), Research(made), Ours(made)):
        told = system.turn()
        assert all(seconds > 0 for what, seconds in told.items() if what == "round")
    told = Profiled(made).turn()
    assert tuple(told) == PHASES
    assert all(told[phase] > 0 for phase in ("plan", "extract", "load", "train", "merge", "rest", "evaluate", "write"))
    assert (told["statistics"] > 0) == bool(made.statistics)
