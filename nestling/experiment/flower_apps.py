"""`server_app` and `client_app`: the two ends of a Flower app that runs an experiment on devices.

Both read the same experiment, and know the keys of configurations that `nestling.experiment.app_config` lists.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nestling.client.worker import Worker
from nestling.data.federated import ClientData, FederatedData
from nestling.data.own.own_samples import check_targets, check_values
from nestling.data.own.sources import as_samples
from nestling.errors import ConfigError
from nestling.experiment.app_config import configured, node_config, rules_of
from nestling.experiment.device_run import run_on_devices
from nestling.experiment.isolation import clean_torch
from nestling.experiment.record import title
from nestling.experiment.simulation import Overrides, Simulation, simulate
from nestling.flower.flower_api import ClientApp, Context, ContextMemory, Grid, ServerApp, answering_app
from nestling.flower.flower_clients import check_method
from nestling.flower.link import Kind, Link, Packet
from nestling.flower.node_memory import FolderMemory, NodeMemory
from nestling.flower.node_worker import NodeWorker
from nestling.flower.strategy import NestlingStrategy, Played
from nestling.heap import keep_freed_memory
from nestling.imported import imported
from nestling.kernels.device import find_device
from nestling.settings import Experiment

LoadClient = Callable[[Context], Any]
_LOADS = "it takes Flower's context and returns the samples of a device"


def server_app(experiment: str | Path | Experiment, *, own_data: bool = True) -> ServerApp:
    """Return a ServerApp that runs an experiment, or goes on with it if its directory has begun.

    The directory is `out` of the run's configuration.

    Parameters
    ----------
    experiment
        The settings, the name of a preset, or a TOML file.
    own_data
        Whether devices have samples of their own. If not, every device holds those of one simulated client, and figures
        are those of the simulation.
    """
    app = ServerApp()

    @app.main()  # type: ignore[untyped-decorator]  # Flower is not installed where types are checked
    def main(grid: Grid, context: Context) -> None:
        keep_freed_memory()  # every reply takes as much as the one before
        settings = configured(experiment, context.run_config)
        strategy(settings, context.run_config, own_data=own_data).start(grid)

    return app


def strategy(experiment: Experiment, config: Mapping[str, Any], *, own_data: bool = True) -> NestlingStrategy:
    """Return the strategy that runs an experiment, with the `RUN_KEYS` of a configuration."""
    out = Path(str(config.get("out", "nestling-run"))).absolute()
    rules = rules_of(config)

    def play(link: Link) -> Played:
        result = run_on_devices(experiment, link, rules, out=out, own_data=own_data)
        print(f"Nestling: done; {out} holds the run: nestling report {out}", flush=True)
        return Played(result.state, result.rounds)

    return NestlingStrategy(play, f"{title(experiment)}, {experiment.rounds} rounds, in {out}")


def client_app(experiment: str | Path | Experiment, load_client: LoadClient | str | None = None) -> ClientApp:
    """Return a ClientApp that trains the slices that it is sent.

    Parameters
    ----------
    experiment
        The same as that of the server.
    load_client
        Returns the samples of the device from the context of its node, in any form that `nestling.federate` takes: a
        function, or its name, such as ``"myapp.data:load_client"``. By default a node holds those of the simulated
        client whose number is its ``partition-id``.
    """
    load = imported(load_client, ConfigError, _LOADS) if isinstance(load_client, str) else load_client
    workers: dict[tuple[str, int | None], NodeWorker] = {}  # of this process: their models are built once

    def answer(kind: Kind, packet: Packet, context: Context) -> Packet:
        settings = configured(experiment, context.run_config)
        config = node_config(context.node_config)
        if load is None and config.client is None:
            raise ConfigError("this node has no number: start it with --node-config 'client=0', or another one")
        with clean_torch(settings.threads, settings.device):
            simulation = _simulation(settings.to_toml())
            key = settings.to_toml(), context.node_id if load else None
            if key not in workers:
                data = _OneClient(simulation.data, load, context) if load else simulation.data
                workers[key] = node_worker(simulation, data)
            return workers[key].answer(kind, packet, config, partial(_memory, context))

    return answering_app(answer)


def _memory(context: Context, run: str) -> NodeMemory:
    """Return where a node keeps what it keeps for a run: its own folder if it has one, else Flower's context."""
    folder = context.node_config.get("folder")
    if not folder:
        return ContextMemory(context)
    if not run.isalnum():
        raise ConfigError(f"the run {run!r} cannot name a folder")
    return FolderMemory(Path(str(folder)) / run)


@cache
def _simulation(settings: str) -> Simulation:
    simulation = simulate(Overrides(Experiment.from_toml(settings)))
    check_method(simulation.setup)
    return simulation


def node_worker(simulation: Simulation, data: FederatedData) -> NodeWorker:
    """Return what answers messages with the samples in `data`."""
    settings, setup = simulation.settings, simulation.setup
    return NodeWorker(setup, data, Worker(setup, data, find_device(settings.device), settings.precision))


class _OneClient:
    """The samples of a device as `FederatedData`: whatever number the server gives it, they are its own."""

    def __init__(self, whole: FederatedData, load_client: LoadClient, context: Context) -> None:
        self._whole = whole
        what = "the samples of this device"
        self._own = as_samples(load_client(context), what)
        check_values(self._own, what)
        if whole.classes:
            check_targets(self._own, what, "classes", whole.classes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._whole, name)

    def __len__(self) -> int:
        return len(self._whole)

    def client(self, number: int) -> ClientData:
        del number
        return self._own

    def size(self, number: int) -> int:
        del number
        return len(self._own)

    def test_share(self, number: int) -> Tensor:
        del number
        return torch.empty(0, dtype=torch.long)
