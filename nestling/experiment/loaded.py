"""`load`: a run directory as its last checkpoint left it, and the trained sub-models in it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from torch import Tensor, nn

from nestling.client.grouped.group_worker import GroupWorker
from nestling.cut import submodel
from nestling.data import Partition
from nestling.engines import LocalEngine
from nestling.errors import RunError, nearest
from nestling.experiment import checkpoint
from nestling.experiment.directory import CONFIG, SUMMARY
from nestling.experiment.federated_data import DividedData, Source
from nestling.experiment.identity import Identity, describe
from nestling.experiment.isolation import clean_torch
from nestling.experiment.recorded_data import DataRecord, RecordedData
from nestling.experiment.simulated_clients import SimulatedClients
from nestling.experiment.simulation import KINDS, Overrides, Simulation, build, simulate
from nestling.experiment.statistics_file import read_statistics
from nestling.methods import Method
from nestling.server.norm_statistics import with_norm_statistics
from nestling.server.state import ServerState
from nestling.settings import Experiment, from_file
from nestling.tasks import Task

_NEEDED = ("model", "method")  # objects of the user's own without which models cannot be built


@dataclass(frozen=True, eq=False)
class LoadedRun:
    """A run read from its directory.

    Attributes
    ----------
    folder
        The run directory.
    round
        The round of its last checkpoint.
    summary
        The content of summary.json; empty if the run is not done.
    """

    folder: Path
    round: int
    summary: dict[str, Any] = field(repr=False)
    _simulation: Simulation = field(repr=False)
    _state: ServerState = field(repr=False)
    _statistics: Mapping[str, dict[str, Tensor]] = field(default_factory=dict, repr=False)

    @property
    def experiment(self) -> Experiment:
        """The settings of the run."""
        return self._simulation.settings

    @property
    def levels(self) -> dict[str, float]:
        """The levels whose sub-models the run tests, widest first: name → ratio."""
        return dict(self._simulation.levels)

    def submodel(self, level: str = "full") -> nn.Module:
        """Return the trained sub-model of a level: a plain module in evaluation mode.

        The statistics of batch norms are those of the test of that round. If it was not tested, because the run is in
        progress or was stopped, the run's clients measure them, for which the data is opened.

        Parameters
        ----------
        level
            The name of one of the run's `levels`, or ``"full"`` for the whole model.
        """
        simulation, state = self._simulation, self._state
        setup, settings, data = simulation.setup, simulation.settings, simulation.data
        if level != "full" and level not in simulation.levels:
            raise RunError(f"the run has no level {level!r}{nearest(str(level), ['full', *simulation.levels])}")
        full = setup.global_plan(state.method_state)
        plan = full if level == "full" else setup.submodel_plan(simulation.levels[level], state.method_state)
        complete = state.separate_global_model(setup) if plan == full else {}
        if setup.private and not complete and state.separate_global_model(setup):
            raise RunError(
                f"the server of {setup.method.name} has no model of level {level!r}, because clients keep theirs: "
                "only 'full' can be loaded"
            )
        if plan not in complete and plan.key in self._statistics:
            complete = {plan: state.download(setup, plan) | self._statistics[plan.key]}
        with clean_torch(settings.threads, settings.device):
            clients = SimulatedClients(simulation, LocalEngine(partial(GroupWorker, setup, data)))
            tensors = with_norm_statistics(
                setup, state, clients, data, settings=settings.evaluate, plans=[plan], complete=complete
            )[plan]
            model = submodel(setup.model, setup.axes, plan)
            model.load_state_dict(tensors)
        return model.eval()


def load(
    folder: str | Path,
    *,
    model: nn.Module | None = None,
    dataset: Source | None = None,
    partition: Partition | None = None,
    method: Method | None = None,
    task: Task | None = None,
) -> LoadedRun:
    """Read a run from its directory, without changing it; the run may be done, stopped or still running.

    Parameters
    ----------
    folder
        The run directory.
    model, dataset, partition, method, task
        The same objects as `nestling.run` got, if any.

    Examples
    --------
    >>> import tempfile, nestling
    >>> from nestling.experiment import find
    >>> settings = ["rounds=1", "local.epochs=1", "data.max_samples=100", "fleet.levels=a-c"]
    >>> with tempfile.TemporaryDirectory() as out:
    ...     _ = nestling.run(find("heterofl-digits").with_settings(settings), out=f"{out}/first")
    ...     small = nestling.load(f"{out}/first").submodel(level="c")
    >>> sum(parameter.numel() for parameter in small.parameters())
    6330
    """
    path = Path(folder)
    if not (path / CONFIG).is_file():
        raise RunError(f"{str(path)!r} is not a run directory: it holds no {CONFIG}")
    overrides = Overrides(from_file(path / CONFIG), model, dataset, partition, method, task)
    identity = Identity.read(path)
    identity.check_objects(path, describe(overrides), "nestling.load", KINDS if identity.data is None else _NEEDED)
    with clean_torch(overrides.experiment.threads, overrides.experiment.device):
        opened = partial(_opened, path, overrides, identity)
        simulation = opened() if identity.data is None else _without_data(overrides, identity.data, opened)
        state = checkpoint.read(path, simulation.setup)
    if state is None:
        raise RunError(f"{str(path)!r} holds no checkpoint yet: no round is done")
    return LoadedRun(path, state.round, _summary(path / SUMMARY), simulation, state, read_statistics(path, state.round))


def _opened(folder: Path, overrides: Overrides, identity: Identity) -> Simulation:
    """Return the simulation of a run with its data; raise if it is not the data that the run began with."""
    identity.check_objects(folder, describe(overrides), "nestling.load")
    simulation = simulate(overrides)
    identity.check_built(folder, simulation, started_over=False)
    return simulation


def _without_data(overrides: Overrides, record: DataRecord, opened: Callable[[], Simulation]) -> Simulation:
    """Return the simulation of a run whose data is opened only when samples are asked for."""
    data = RecordedData(record, lambda: opened().data)
    experiment = overrides.experiment
    weightless = msgspec.structs.replace(experiment, model=msgspec.structs.replace(experiment.model, weights=""))
    divided = DividedData(data, data, overrides.task or record.known_task())
    return replace(build(replace(overrides, experiment=weightless), divided), settings=experiment)


def _summary(path: Path) -> dict[str, Any]:
    try:
        summary: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as problem:
        raise RunError(f"{str(path)!r} cannot be read: {problem}") from None
    return summary
