"""Both Flowers that rounds are compared with do the same work as Nestling."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from bench_cases import NARROW, close, double, in_double
from processes import call
from safetensors.torch import load_file

from bench.rounds.others import FLOWER
from nestling.engines import LocalEngine
from nestling.experiment.round import run_round
from nestling.experiment.server import Server
from nestling.experiment.worker import Worker

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    """A folder with the models that Flower made, in its own environment."""
    environment = ROOT / FLOWER.environment
    if not (environment / ".ready").exists():
        pytest.skip(f"Flower is not here: make bench makes {FLOWER.environment}")
    folder = tmp_path_factory.mktemp("flower")
    paths = (ROOT, ROOT / "tests/bench")
    settings = {"PYTHONPATH": os.pathsep.join(map(str, paths)), "FLWR_HOME": str(folder), "OMP_NUM_THREADS": "1"}
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
        made = in_double(NARROW)
        server, engine = Server.start(made, None), LocalEngine(lambda: Worker(made))
        for _ in range(2):
            server, _ = run_round(made, server, engine)
    start = made.model.state_dict()
    assert all(not torch.equal(start[name], server.state[name]) for name in made.parameters)
    return {name: server.state[name] if name in made.parameters else value for name, value in start.items()}


@pytest.mark.parametrize("name", ["plain", "lean"])
def test_rounds_of_flower_make_the_same_model(name, theirs, ours):
    close(ours, load_file(theirs / f"{name}.safetensors"))
