"""`load`: a run directory as its last checkpoint left it, and the trained sub-models in it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from nestling.client.grouped.group_worker import GroupWorker
from nestling.cut import submodel
from nestling.data import Partition
from nestling.engines import LocalEngine
from nestling.errors import RunError, nearest
from nestling.experiment import checkpoint
from nestling.experiment.directory import CONFIG, SUMMARY
from nestling.experiment.federated_data import Source
from nestling.experiment.identity import Identity, describe
from nestling.experiment.isolation import clean_torch
from nestling.experiment.simulated_clients import SimulatedClients
from nestling.experiment.simulation import Overrides, Simulation, simulate
from nestling.methods import Method
from nestling.server.norm_statistics import with_norm_statistics
from nestling.server.state import ServerState
from nestling.settings import Experiment, from_file
from nestling.tasks import Task


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

        The statistics of batch norms are measured by the run's clients, as before a test.

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
    identity.check_objects(path, describe(overrides), "nestling.load")
    with clean_torch(overrides.experiment.threads, overrides.experiment.device):
        simulation = simulate(overrides)
        state = checkpoint.read(path, simulation.setup)
    if state is None:
        raise RunError(f"{str(path)!r} holds no checkpoint yet: no round is done")
    identity.check_built(path, simulation, started_over=False)
    return LoadedRun(path, state.round, _summary(path / SUMMARY), simulation, state)


def _summary(path: Path) -> dict[str, Any]:
    try:
        summary: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as problem:
        raise RunError(f"{str(path)!r} cannot be read: {problem}") from None
    return summary
