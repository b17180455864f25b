"""Build the workers of an engine, in the processes where they run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch

from nestling.client.grouped.group_worker import GroupWorker
from nestling.data.federated import ClientData, FederatedData
from nestling.data.own.own_clients import OwnArrays, OwnClients
from nestling.engines.packing import travels
from nestling.experiment.simulation import Overrides, Simulation, simulate
from nestling.kernels.device import find_device
from nestling.methods import Setup
from nestling.settings import Experiment


def worker_factory(overrides: Overrides, simulation: Simulation) -> Callable[[], GroupWorker]:
    """Return a function that builds a worker in any process.

    The worker gets the model and data of this process; a model that cannot be sent is built again in its process.
    """
    settings, setup = simulation.settings, simulation.setup
    if (settings.engine == "local" and settings.workers == 1) or travels(setup.model):
        return partial(_worker, settings, setup, simulation.data, simulation.public_at_clients)
    return partial(_rebuilt, _with_data(overrides, simulation))


def _with_data(overrides: Overrides, simulation: Simulation) -> Overrides:
    task = simulation.setup.task if isinstance(simulation.dataset, OwnClients | OwnArrays) else overrides.task
    return replace(overrides, dataset=simulation.dataset, partition=simulation.partition, task=task)


def _worker(settings: Experiment, setup: Setup, data: FederatedData, public: ClientData | None) -> GroupWorker:
    torch.set_num_threads(settings.threads)
    return GroupWorker(setup, data, find_device(settings.device), settings.precision, public)


def _rebuilt(overrides: Overrides) -> GroupWorker:
    torch.set_num_threads(overrides.experiment.threads)
    simulation = simulate(overrides)
    return _worker(simulation.settings, simulation.setup, simulation.data, simulation.public_at_clients)
