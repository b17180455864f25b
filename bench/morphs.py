"""FedMorph: what a morph of ResNet8 costs, against the local training between two of them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from bench.figure import Figure
from bench.timing import side_by_side
from nestling.data import from_arrays
from nestling.engines import LocalEngine
from nestling.experiment.between import between
from nestling.experiment.round import run_round
from nestling.experiment.server import Server
from nestling.experiment.setting import Overrides, Setting, setting
from nestling.experiment.worker import Worker
from nestling.settings import Experiment, FleetSettings, LocalTraining, Model

_SAMPLES = 600  # of a client, as MNIST has for 100 of them
_SERVER = 0.625  # of all samples here: 10,000 unlabelled ones beside the 6,000 of ten clients
_PART = 20  # measured on a twentieth of the samples


def morphs(quick: bool = False) -> Iterator[Figure]:
    """A distillation of ResNet8 in the paper's setting, against ten rounds of ten clients with the whole ResNet8."""
    client = _SAMPLES // (_PART * (10 if quick else 1))
    made = _setting("fedmorph", {"ratio": 0.1, "epochs": 2, "every": 1}, client)
    server = Server.start(made, None)
    whole, small = _setting("fedavg", {}, client), _setting("fedmorph", {"ratio": 0.1, "every": 0}, client)
    actions = [partial(_morph, made, server), partial(_round, whole), partial(_round, small)]
    distilled, fedavg, fedmorph = side_by_side(*actions, repeats=1 if quick else 3)
    ratio, beside = distilled / (10 * fedavg), distilled / (10 * fedmorph)
    yield Figure(
        "distillation of ResNet8",
        ratio,
        "× ten rounds of local training",
        "< 1",
        ratio < 1,
        f"of the whole network; against ten rounds with the small one, 1 % of its parameters: {beside:.1f}",
    )


def _setting(method: str, options: dict[str, object], client: int) -> Setting:
    """Ten clients, all of them in every round, and a server with unlabelled samples."""
    draw = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (round(10 * client / (1 - _SERVER)), 1, 28, 28), dtype=torch.uint8, generator=draw)
    labels = torch.arange(len(images)) % 10
    experiment = Experiment(
        method=method,
        options=options,
        rounds=1000,
        cohort="off",
        model=Model(name="resnet8"),
        fleet=FleetSettings(clients=10, per_round=10, levels="a"),
        local=LocalTraining(lr=0.1, momentum=0.9, weight_decay=5e-4, epochs=1, batch=100),
    ).with_settings([f"data.unlabelled={_SERVER}"])
    return setting(Overrides(experiment, dataset=from_arrays(images, labels, test=(images[:10], labels[:10]))))


def _morph(made: Setting, server: Server) -> None:
    between(made, server, server.next(), 0.1)


def _round(made: Setting) -> None:
    run_round(made, Server.start(made, None), LocalEngine(partial(Worker, made)))
