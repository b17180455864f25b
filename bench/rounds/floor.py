"""The floor: bare SGD steps of the same clients, with no federation around them."""

from __future__ import annotations

import time
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.rounds.workloads import read
from nestling.client.submodels import build_plain
from nestling.experiment.simulation import Simulation
from nestling.kernels.memory_format import set_memory_format
from nestling.settings import LocalTraining

Batch = tuple[Tensor, Tensor]


class Floor:
    """Trains sub-models that were built before, on batches that were read before.

    Weights, and what an optimiser remembers, are new for every client, as in training; that weights are is not timed.
    """

    def __init__(self, simulation: Simulation) -> None:
        self._local = simulation.settings.local
        ratios = {who.client: who.level.ratio for who in simulation.participants(1)}
        self._models = {ratio: bare(simulation, ratio) for ratio in sorted(set(ratios.values()))}
        self._starts = {
            ratio: {name: tensor.clone() for name, tensor in model.state_dict().items()}
            for ratio, model in self._models.items()
        }
        self._work = [(ratios[client], list(read(simulation, client, 1))) for client in ratios]

    def turn(self) -> dict[str, float]:
        """Train every client once; return the seconds that took."""
        spent = 0.0
        for ratio, batches in self._work:
            model = self._models[ratio]
            model.load_state_dict(self._starts[ratio])
            start = time.perf_counter()
            steps(model, batches, self._local)
            spent += time.perf_counter() - start
        return {"round": spent}


def bare(simulation: Simulation, ratio: float) -> nn.Module:
    """Return the sub-model of a level in the memory formats in which clients train it, with PyTorch's kernels alone."""
    setup = simulation.setup
    model = build_plain(setup, setup.submodel_plan(ratio), ratio)
    set_memory_format(model)
    return model.train()


def steps(model: nn.Module, batches: Iterable[Batch], local: LocalTraining) -> None:
    """Take a step on every batch, with the optimiser that training uses, and nothing else."""
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(
        parameters, lr=local.lr, momentum=local.momentum, weight_decay=local.weight_decay, fused=True
    )
    for inputs, targets in batches:
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(model(inputs).flatten(0, -2), targets.flatten()).backward()
        nn.utils.clip_grad_norm_(parameters, local.clip_norm, foreach=True)
        optimizer.step()
