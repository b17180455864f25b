"""A plain research loop, written for comparison: the habits of published code of this field, in our own words.

Clients are trained one by one. Each gets a deep copy of the global model, cut down to its level, and a `DataLoader`
that transforms sample by sample. Slices are added up in dictionaries, tensor by tensor, at index lists of rows and
columns. After every round the whole model is run over all clients' samples for the statistics of its norms, and then
tested. It is the same work as Nestling's: a test holds the models that both make against each other.
"""

from __future__ import annotations

import copy
import time
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as Samples

from bench.rounds.client import Held, fit, training
from bench.rounds.dictionaries import Average, cut, index_lists
from nestling.cut import submodel
from nestling.experiment.simulation import Simulation
from nestling.kernels.batch_norms import batch_norms
from nestling.methods.parts.scaler import scale
from nestling.methods.parts.static_norms import make_static
from nestling.seeds import torch_stream
from nestling.tasks import Classification


class Research:
    """A global model, and rounds of it."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self.model = copy.deepcopy(simulation.setup.model)
        self.round = 0
        ratios = {simulation.fleet.level(client, 1).ratio for client in simulation.fleet.sample(1)}
        self._lists = {
            ratio: index_lists(simulation.setup.axes, simulation.setup.submodel_plan(ratio)) for ratio in ratios
        }

    def turn(self) -> dict[str, float]:
        """Play a round, gather statistics and test; return the seconds of each."""
        marks = [time.perf_counter()]
        for action in (self.play, self.gather, self.test):
            action()
            marks.append(time.perf_counter())
        round, gather, test = (stop - start for start, stop in pairwise(marks))
        return {"round": round, "evaluation": gather + test}

    def play(self) -> None:
        """Train all clients of a round, and average."""
        simulation, self.round = self._simulation, self.round + 1
        whole = self.model.state_dict()
        average = Average(whole)
        for client in simulation.fleet.sample(self.round):
            ratio = simulation.fleet.level(client, self.round).ratio
            model = submodel(copy.deepcopy(self.model), simulation.setup.axes, simulation.setup.submodel_plan(ratio))
            model.load_state_dict(cut(whole, self._lists[ratio]))
            scale(model, simulation.setup.axes, ratio)
            make_static(model)
            fit(model, training(simulation, client, self.round), simulation.settings.local)
            average.add(model.state_dict(), self._lists[ratio])
        self.model.load_state_dict(average.value())

    @torch.no_grad()
    def gather(self) -> None:
        """Give the norms of the whole model the mean statistics of all batches of all clients."""
        norms = [norm for _, norm in batch_norms(self.model)]
        if not norms:
            return
        self.model.train()
        for norm in norms:
            norm.track_running_stats, norm.momentum = True, None  # without a momentum: the mean over batches
            norm.reset_running_stats()
        for client in range(self._simulation.fleet.clients):
            for inputs, _ in DataLoader(
                Held(self._simulation, client), batch_size=self._simulation.settings.local.batch_size
            ):
                self.model(inputs)

    @torch.no_grad()
    def test(self) -> float:
        """Return the loss of the whole model on the test set."""
        simulation = self._simulation
        self.model.eval()
        total, seen = 0.0, 0
        held = _Tested(simulation, torch_stream(simulation.settings.seed, "mask", "test", 0))
        for inputs, targets in DataLoader(
            held,
            batch_size=simulation.settings.evaluate.batch if isinstance(simulation.setup.task, Classification) else 10,
        ):
            logits = self.model(inputs)
            total += F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="sum").item()
            seen += targets.numel()
        return total / seen


class _Tested(Samples[tuple[Tensor, Tensor]]):
    """The test set, transformed one by one."""

    def __init__(self, simulation: Simulation, random: torch.Generator) -> None:
        self._simulation, self._random = simulation, random

    def __len__(self) -> int:
        return len(self._simulation.data.test)

    def __getitem__(self, place: int) -> tuple[Tensor, Tensor]:
        data = self._simulation.data.test
        inputs, targets = self._simulation.setup.task.prepare(
            data.batch(torch.tensor([place])), self._random, training=True
        )
        return data.transform(inputs, None)[0], targets[0]
