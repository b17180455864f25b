"""What is simulated: the papers' models and fleets, with fewer samples, which are made up.

All clients take part in every round, so that every round is the same work. Each trains one epoch of a few batches: less
than in the papers, so that what a system does around the training weighs more here than there. Losses are not masked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from nestling.data import Text, Vocabulary, from_arrays
from nestling.data.batches import batches
from nestling.errors import ConfigError, nearest
from nestling.experiment.simulation import Overrides, Simulation, simulate
from nestling.nets import MODELS
from nestling.seeds import torch_stream
from nestling.settings import Data, Evaluate, Experiment, FleetSettings, LocalTraining, Model

_LENGTH = 64  # words of a sequence


@dataclass(frozen=True)
class Workload:
    """A fleet and its work.

    Attributes
    ----------
    about
        What it is, for tables.
    model, options, width
        The global model.
    levels
        Those of the clients, as many of each.
    clients, samples, tested
        How many clients there are, how many samples or sequences each holds, and how many are tested on.
    channels, size
        Of images; a workload without channels is of words.
    augment
        What training does to images.
    repeats
        How often a round is timed.
    small
        Options of the model where things are only tried out.
    """

    about: str
    model: str
    options: dict[str, Any] = field(default_factory=dict)
    width: float = 1.0
    levels: str = "a-b-c-d-e"
    clients: int = 10
    samples: int = 20
    tested: int = 40
    channels: int = 1
    size: int = 28
    augment: str = "none"
    repeats: int = 5
    small: dict[str, Any] = field(default_factory=dict)

    @property
    def mixed(self) -> bool:
        """Whether there are clients of several levels."""
        return "-" in self.levels


_NARROW = {"widths": (16, 16, 16, 16)}
WORKLOADS: dict[str, Workload] = {
    "cifar10": Workload(
        "CIFAR-10, PreResNet18 a–e, 10 clients",
        "preresnet18-paper",
        samples=100,
        tested=200,
        channels=3,
        size=32,
        augment="crop-flip",
        repeats=7,
        small=_NARROW,
    ),
    "mnist": Workload("MNIST, CNN a–e, 10 clients", "cnn", samples=200, tested=400, small=_NARROW),
    "cnn-e": Workload(
        "CNN of level e, 100 clients",
        "cnn",
        width=1 / 16,
        levels="a",
        clients=100,
        samples=50,
        tested=500,
    ),
    "mlp": Workload("MLP, 100 clients", "mlp", levels="a", clients=100, samples=50, tested=500, repeats=7),
    "mlp-e": Workload(
        "MLP of level e, 100 clients", "mlp", width=1 / 16, levels="a", clients=100, samples=50, tested=500, repeats=7
    ),
    "transformer": Workload(
        "masked words, Transformer a–e, 10 clients",
        "transformer-mlm",
        options={"vocabulary": 8000},
        samples=50,
        channels=0,
        small={"vocabulary": 100, "width": 32, "hidden": 32, "depth": 1},
    ),
}


def find(name: str, quick: bool = False) -> Workload:
    """Return the workload of a name, or a small one like it.

    >>> find("mnist", quick=True).clients
    5
    >>> find("minst")
    Traceback (most recent call last):
        ...
    nestling.errors.ConfigError: there is no workload 'minst'; did you mean 'mnist'?
    """
    if name not in WORKLOADS:
        raise ConfigError(f"there is no workload {name!r}{nearest(name, WORKLOADS)}")
    named = WORKLOADS[name]
    if not quick:
        return named
    return replace(named, clients=5, samples=10, tested=10, repeats=1, options={**named.options, **named.small})


def experiment(workload: Workload, workers: int = 1, **more: Any) -> Experiment:
    """Return the settings of a workload: HeteroFL, with evaluation of the whole model as research code does it."""
    return Experiment(
        method="heterofl",
        options={"masked": False},
        rounds=1000,
        workers=workers,
        model=Model(name=workload.model, options=workload.options, width=workload.width),
        data=Data(partition="iid" if workload.channels else "user"),
        fleet=FleetSettings(clients=workload.clients, per_round=workload.clients, levels=workload.levels),
        local=LocalTraining(lr=0.01, epochs=1, batch_size=10),
        evaluate=Evaluate(submodels=False),
        **more,
    )


def prepare(workload: Workload, workers: int = 1, **more: Any) -> Simulation:
    """Return all that stays the same from round to round.

    >>> simulation = prepare(find("mlp", quick=True))
    >>> len(simulation.fleet.sample(1)), len(simulation.partition.train[0])
    (5, 10)
    """
    settings = experiment(workload, workers, **more)
    random = torch_stream(0, "workload")
    count = workload.clients * workload.samples
    if not workload.channels:
        words = workload.options["vocabulary"]
        rows = torch.randint(words, (count + workload.tested, _LENGTH), generator=random)
        *users, test = rows.split([workload.samples] * workload.clients + [workload.tested])
        known = Vocabulary(tuple(f"word{number}" for number in range(words)))
        text = Text("made up", "masked-word", known, _LENGTH, users=users, test=[test])
        return simulate(Overrides(settings, dataset=text))
    shape = (workload.channels, workload.size, workload.size)
    images = torch.randint(256, (count + workload.tested, *shape), generator=random, dtype=torch.uint8)
    labels = torch.arange(len(images)) % MODELS[workload.model].options["classes"]
    images_of = from_arrays(
        images[:count],
        labels[:count],
        (images[count:], labels[count:]),
        mean=(0.5,) * workload.channels,
        std=(0.25,) * workload.channels,
        augment=workload.augment,
    )
    return simulate(Overrides(settings, dataset=images_of))


def read(simulation: Simulation, client: int, round: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the batches of a client's training in a round: the very ones that `nestling.run` trains on."""
    seed, local = simulation.settings.seed, simulation.settings.local
    order = torch_stream(seed, "batches", round, client)
    random = torch_stream(seed, "augment", round, client)
    data = simulation.data.client(client)
    for _ in range(local.epochs):
        for chosen in batches(torch.arange(len(data)), local.batch_size, order):
            inputs, targets = simulation.setup.task.prepare(data.batch(chosen), random, training=True)
            yield data.transform(inputs, random), targets
