"""FedMorph: what a morph of ResNet8 costs, against the local training between two of them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from bench.figure import Figure
from bench.timing import side_by_side
from nestling.data import from_arrays
from nestling.experiment.simulation import Overrides, Simulation, simulate
from nestling.experiment.simulator import Simulator
from nestling.methods.context import Merged
from nestling.server.state import ServerState
from nestling.settings import Experiment, FleetSettings, LocalTraining, Model

_SAMPLES = 600  # of a client, as MNIST has for 100 of them
_SERVER = 0.625  # of all samples here: 10,000 unlabelled ones beside the 6,000 of ten clients
_PART = 20  # measured on a twentieth of the samples


def morphs(quick: bool = False) -> Iterator[Figure]:
    """A distillation of ResNet8 in the paper's setting, against ten rounds of ten clients with the whole ResNet8."""
    client = _SAMPLES // (_PART * (10 if quick else 1))
    morphing = _simulation("fedmorph", {"ratio": 0.1, "epochs": 2, "every": 1}, client)
    whole, small = _simulation("fedavg", {}, client), _simulation("fedmorph", {"ratio": 0.1, "every": 0}, client)
    actions = [partial(_morph, morphing), partial(_round, whole), partial(_round, small)]
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


def _simulation(method: str, options: dict[str, object], client: int) -> Simulation:
    """Ten clients, all of them in every round, and a server with unlabelled samples."""
    draw = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (round(10 * client / (1 - _SERVER)), 1, 28, 28), dtype=torch.uint8, generator=draw)
    labels = torch.arange(len(images)) % 10
    experiment = Experiment(
        method=method,
        options=options,
        rounds=1000,
        group_clients="off",
        model=Model(name="resnet8"),
        fleet=FleetSettings(clients=10, per_round=10, levels="a"),
        local=LocalTraining(lr=0.1, momentum=0.9, weight_decay=5e-4, epochs=1, batch_size=100),
    ).with_settings([f"data.public_share={_SERVER}"])
    dataset = from_arrays(images, labels, test=(images[:10], labels[:10]))
    return simulate(Overrides(experiment, dataset=dataset))


def _morph(simulation: Simulation) -> None:
    state = ServerState.start(simulation.setup)
    context = state.context(simulation.setup, simulation.public)
    simulation.setup.method.after_merge(context, Merged(state.model, lambda name: state.model[name]))


def _round(simulation: Simulation) -> None:
    Simulator(simulation).run_round(ServerState.start(simulation.setup))
