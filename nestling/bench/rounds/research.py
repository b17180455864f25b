"""A plain research loop, written for comparison: the habits of published code of this field, in our own words.

Clients are trained one by one. Each gets a deep copy of the global model, cut down to its level, and a `DataLoader`
that transforms sample by sample. Slices are added up in dictionaries, tensor by tensor, at index lists of rows and
columns. After every round the whole model is run over all clients' samples for the statistics of its norms, and then
tested. It is the same work as Nestling's: a test holds the models that both make against each other.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as Samples

from nestling.cut import Plan, submodel
from nestling.cut.extract import cuts
from nestling.data import TextShares
from nestling.local.batches import batches
from nestling.local.norms import batch_norms, static
from nestling.local.scaler import scale
from nestling.run.setting import Setting
from nestling.seeds import torch_stream

Indices = dict[str, tuple[Tensor, ...]]


class Research:
    """A global model, and rounds of it."""

    def __init__(self, made: Setting) -> None:
        self._made = made
        self.model = copy.deepcopy(made.model)
        self.round = 0
        self._indices: dict[float, Indices] = {}
        for client in made.sample(1):
            ratio = made.level(client, 1).ratio
            if ratio not in self._indices:
                self._indices[ratio] = self._lists(made.submodel(ratio))

    def turn(self) -> dict[str, float]:
        """Play a round, gather statistics and test; return the seconds of each."""
        marks = [time.perf_counter()]
        for action in (self.play, self.gather, self.test):
            action()
            marks.append(time.perf_counter())
        play, gather, test = (stop - start for start, stop in pairwise(marks))
        return {"round": play, "evaluation": gather + test}

    def play(self) -> None:
        """Train all clients of a round, and average."""
        made, self.round = self._made, self.round + 1
        whole = self.model.state_dict()
        sums = {name: torch.zeros_like(tensor) for name, tensor in whole.items()}
        counts = {name: torch.zeros_like(tensor) for name, tensor in whole.items()}
        for client in made.sample(self.round):
            ratio = made.level(client, self.round).ratio
            plan, indices = made.submodel(ratio), self._indices[ratio]
            small = {name: tensor[_grid(indices[name])].clone() for name, tensor in whole.items()}
            model = submodel(copy.deepcopy(self.model), made.axes, plan)
            model.load_state_dict(small)
            scale(model, made.axes, ratio)
            self._train(model, client)
            for name, tensor in model.state_dict().items():
                sums[name][_grid(indices[name])] += tensor
                counts[name][_grid(indices[name])] += 1
        self.model.load_state_dict(
            {
                name: torch.where(counts[name] > 0, sums[name] / counts[name].clamp(min=1), tensor).to(tensor.dtype)
                for name, tensor in whole.items()
            }
        )

    def _train(self, model: nn.Module, client: int) -> None:
        made, local = self._made, self._made.experiment.local
        static(model)
        model.train()
        optimizer = torch.optim.SGD(
            model.parameters(), lr=local.lr, momentum=local.momentum, weight_decay=local.weight_decay
        )
        order = _Shuffled(len(made.partition.train[client]), local.batch, self._stream("batches", client))
        loader = DataLoader(_Held(made, client, self._stream("augment", client)), batch_sampler=order)
        for _ in range(local.epochs):
            for inputs, targets in loader:
                optimizer.zero_grad()
                F.cross_entropy(model(inputs).flatten(0, -2), targets.flatten()).backward()
                nn.utils.clip_grad_norm_(model.parameters(), local.clip)
                optimizer.step()

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
        for client in range(self._made.fleet.clients):
            for inputs, _ in DataLoader(_Held(self._made, client), batch_size=self._made.experiment.local.batch):
                self.model(inputs)

    @torch.no_grad()
    def test(self) -> float:
        """Return the loss of the whole model on the test set."""
        made = self._made
        self.model.eval()
        total, seen = 0.0, 0
        held = _Tested(made, torch_stream(made.experiment.seed, "mask", "test", 0))
        for inputs, targets in DataLoader(
            held, batch_size=made.experiment.evaluate.batch if made.words is None else 10
        ):
            logits = self.model(inputs)
            total += F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="sum").item()
            seen += targets.numel()
        return total / seen

    def _stream(self, purpose: str, client: int) -> torch.Generator:
        return torch_stream(self._made.experiment.seed, purpose, self.round, client)

    def _lists(self, plan: Plan) -> Indices:
        """For every tensor, the rows and columns that a level keeps; what comes after them is kept whole."""
        lists = {}
        for name, cut in cuts(self._made.axes, plan).items():
            shape = self._made.axes.dims[name].shape
            places = cut.take(torch.arange(math.prod(shape)).view(shape))
            found = []
            for k, size in enumerate(shape[:2]):
                line = places.movedim(k, 0).flatten(1)[:, 0] if len(shape) > 1 else places
                found.append(line // math.prod(shape[k + 1 :]) % size)
            lists[name] = tuple(found)
        return lists


def _grid(indices: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return torch.meshgrid(*indices, indexing="ij") if indices else ()


class _Held(Samples[tuple[Tensor, Tensor]]):
    """A client's samples, transformed one by one; augmented where they are for training."""

    def __init__(self, made: Setting, client: int, random: torch.Generator | None = None) -> None:
        self._made, self._client, self._random = made, client, random

    def __len__(self) -> int:
        return len(self._made.partition.train[self._client])

    def __getitem__(self, place: int) -> tuple[Tensor, Tensor]:
        made = self._made
        if made.words is not None:
            assert isinstance(made.partition, TextShares)
            inputs, targets = made.words.batch(
                made.partition.sequences[self._client][place : place + 1], self._random or torch.Generator()
            )
            return inputs[0], targets[0]
        sample = int(made.partition.train[self._client][place])
        image = made.images.inputs[sample]
        if self._random is not None and made.images.augment == "crop-flip":
            image = _shifted(image, self._random)
        return made.images.ready(image[None])[0], made.images.targets[sample]


class _Tested(Samples[tuple[Tensor, Tensor]]):
    """The test set, transformed one by one."""

    def __init__(self, made: Setting, random: torch.Generator) -> None:
        self._made, self._random = made, random

    def __len__(self) -> int:
        return self._made.tested("test")

    def __getitem__(self, place: int) -> tuple[Tensor, Tensor]:
        made = self._made
        if made.words is not None:
            inputs, targets = made.words.batch(made.sequences["test"][place : place + 1], self._random)
            return inputs[0], targets[0]
        return made.images.ready(made.images.test_inputs[place : place + 1])[0], made.images.test_targets[place]


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
