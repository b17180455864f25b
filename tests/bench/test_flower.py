"""Both Flowers that rounds are compared with do the same work as Nestling."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from bench.rounds.others import FLOWER
from nestling.experiment.simulator import Simulator
from nestling.server.state import ServerState
from tests.bench.bench_cases import NARROW, close, double, in_double
from tests.harness import engine_of
from tests.processes import call

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    """A folder with the models that Flower made, in its own environment."""
    environment = ROOT / FLOWER.environment
    if not (environment / ".ready").exists():
        pytest.skip(f"Flower is not here: make bench makes {FLOWER.environment}")
    folder = tmp_path_factory.mktemp("flower")
    settings = {"PYTHONPATH": str(ROOT), "FLWR_HOME": str(folder), "OMP_NUM_THREADS": "1"}
    call(
        [environment / "bin/python", ROOT / "tests/bench/flower_in_double.py", folder],
        env={**os.environ, **dict(FLOWER.variables), **settings},
        check=True,
    )
    return folder


@pytest.fixture(scope="module")
def ours():
    """The model that Nestling makes of the same rounds; statistics of norms stay as they were."""
    with double():
        simulation = in_double(NARROW)
        setup = simulation.setup
        state, simulator = ServerState.start(setup), Simulator(simulation, engine_of(simulation))
        for _ in range(2):
            state, _ = simulator.run_round(state)
    start = setup.model.state_dict()
    assert all(not torch.equal(start[name], state.model[name]) for name in setup.parameters)
    return {name: state.model[name] if name in setup.parameters else value for name, value in start.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain", "lean"])
def test_rounds_of_flower_make_the_same_model(name, theirs, ours):
    close(ours, load_file(theirs / f"{name}.safetensors"))
