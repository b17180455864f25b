"""A client as published code writes it: a `DataLoader` that transforms sample by sample, and a loop of SGD."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as Samples

from nestling.data.batches import batches
from nestling.experiment.simulation import Simulation
from nestling.seeds import torch_stream
from nestling.settings import LocalTraining

Batch = tuple[Tensor, Tensor]


class Held(Samples[Batch]):
    """A client's samples, transformed one by one; augmented where they are for training."""

    def __init__(self, simulation: Simulation, client: int, random: torch.Generator | None = None) -> None:
        self._task, self._data, self._random = simulation.setup.task, simulation.data.client(client), random

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, place: int) -> Batch:
        sample, random = self._data.batch(torch.tensor([place])), self._random or torch.Generator()
        inputs, targets = self._task.prepare(sample, random, training=True)
        if self._random is not None and self._data.augmented:
            inputs = _shifted(inputs[0], self._random)[None]
        return self._data.transform(inputs, None)[0], targets[0]


def training(simulation: Simulation, client: int, round: int) -> DataLoader[Batch]:
    """Return a client's batches of a round, in the order that Nestling draws."""
    seed = simulation.settings.seed
    held = Held(simulation, client, torch_stream(seed, "augment", round, client))
    order = _Shuffled(len(held), simulation.settings.local.batch_size, torch_stream(seed, "batches", round, client))
    return DataLoader(held, batch_sampler=order)


def fit(model: nn.Module, loader: Iterable[Batch], local: LocalTraining) -> float:
    """Train a model; return the mean loss of its batches."""
    model.train()
    optimizer = torch.optim.SGD(
        model.parameters(), lr=local.lr, momentum=local.momentum, weight_decay=local.weight_decay
    )
    losses = []
    for _ in range(local.epochs):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs).flatten(0, -2), targets.flatten())
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), local.clip_norm)
            optimizer.step()
            losses.append(loss.item())
    return sum(losses) / len(losses)


class _Shuffled:
    """The batches of a client, shuffled anew in every epoch, as Nestling draws them."""

    def __init__(self, count: int, size: int, random: torch.Generator) -> None:
        self._count, self._size, self._random = count, size, random

    def __iter__(self) -> Iterator[list[int]]:
        for chosen in batches(torch.arange(self._count), self._size, self._random):
            yield chosen.tolist()


def _shifted(image: Tensor, random: torch.Generator, pad: int = 4) -> Tensor:
    """An image moved by up to `pad` pixels each way, and mirrored half of the time."""
    down, right, mirror = (int(torch.randint(high, (), generator=random)) for high in (2 * pad + 1, 2 * pad + 1, 2))
    height, width = image.shape[-2:]
    moved = F.pad(image, (pad,) * 4)[:, down : down + height, right : right + width]
    return moved.flip(-1) if mirror else moved
