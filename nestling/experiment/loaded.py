"""`load`: a run directory as its last checkpoint left it, and the trained sub-models in it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from torch import Tensor, nn

from nestling.axes import AxisMap
from nestling.budgets import Budget
from nestling.client.grouped.group_worker import GroupWorker
from nestling.cut import submodel
from nestling.data import Partition
from nestling.engines import LocalEngine
from nestling.errors import NestlingError, RunError, nearest
from nestling.events import report
from nestling.experiment import checkpoint
from nestling.experiment.directory import CONFIG, SUMMARY
from nestling.experiment.exported import Exported, export_submodel, hub_model
from nestling.experiment.federated_data import DividedData, Source
from nestling.experiment.identity import Identity, describe
from nestling.experiment.isolation import clean_torch
from nestling.experiment.recorded_data import DataRecord, RecordedData
from nestling.experiment.simulated_clients import SimulatedClients
from nestling.experiment.simulation import KINDS, Overrides, Simulation, build, simulate
from nestling.experiment.statistics_file import read_statistics
from nestling.experiment.submodel_choice import Choice, choose, meter_of
from nestling.fleet import parse_level
from nestling.methods import Method
from nestling.server.evaluation import evaluate
from nestling.server.norm_statistics import with_norm_statistics
from nestling.server.state import ServerState
from nestling.settings import Experiment, from_file
from nestling.tasks import Task

if TYPE_CHECKING:
    from nestling.experiment.hub_model import HubModel

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

    @property
    def axes(self) -> AxisMap:
        """The axes of the global model."""
        return self._simulation.setup.axes

    def choose(self, budget: str | Budget | Iterable[str]) -> Choice:
        """Return the largest sub-model that meets a budget, such as ``"2 MB, 50 MMACs"`` (see `nestling.budgets`).

        It is one of the run's levels if sub-models have tensors of their own or all clients train one size; other
        methods give the largest slice of any ratio. `Choice.trained` says whether clients trained just this size.
        """
        simulation, state = self._simulation, self._state
        setup, levels = simulation.setup, [level for level, _ in simulation.fleet.mix]
        if setup.per_submodel:  # a level that no client had yet has initial tensors
            keys = {level: setup.submodel_plan(level.ratio, state.method_state).key for level in levels}
            levels = [level for level in levels if keys[level] in state.submodels]
        if not levels:
            raise RunError(f"{str(self.folder)!r} has no trained sub-model yet: train more rounds")
        return choose(setup, simulation.costs, state.method_state, levels, budget)

    def submodel(self, level: str | None = None, *, budget: str | Budget | Iterable[str] | None = None) -> nn.Module:
        """Return a trained sub-model: a plain module in evaluation mode.

        The statistics of batch norms are those of the test of that round. If it was not tested, because the run is in
        progress or was stopped, the run's clients measure them, for which the data is opened.

        Parameters
        ----------
        level
            The name of one of the run's `levels`, or ``"full"`` (the default) for the whole model.
        budget
            Instead of a level: what the sub-model may cost. The largest that meets it is returned (see `choose`).
        """
        return self.submodel_of(self.selected(level, budget=budget))

    def selected(self, level: str | None = None, *, budget: str | Budget | Iterable[str] | None = None) -> Choice:
        """Return which sub-model the arguments of `submodel` mean, and what it costs."""
        simulation, state = self._simulation, self._state
        setup = simulation.setup
        if level is not None and budget is not None:
            raise RunError(f"a sub-model has a level or a budget, not both: leave out {level!r} or {str(budget)!r}")
        if budget is not None:
            return self.choose(budget)
        if level not in (None, "full", *simulation.levels):
            raise RunError(f"the run has no level {level!r}{nearest(str(level), ['full', *simulation.levels])}")
        whole = level in (None, "full")
        ratio = 1.0 if whole else simulation.levels[str(level)]
        plan = setup.global_plan(state.method_state) if whole else setup.submodel_plan(ratio, state.method_state)
        name = parse_level("a" if whole else str(level))
        return Choice(name, True, meter_of(setup, simulation.costs).measured(plan, ratio))

    def export(
        self,
        out: str | Path,
        level: str | None = None,
        *,
        budget: str | Budget | Iterable[str] | None = None,
        format: str | None = None,
    ) -> Exported:
        """Write a trained sub-model to a file for devices, verify it, and write a model card beside it.

        The outputs of the file are compared with those of the sub-model on random samples; above a difference of 1e-5,
        `ExportError` is raised and nothing is written.

        Parameters
        ----------
        out
            The file to write; the model card has its name and ``.md`` at the end.
        level, budget
            Which sub-model, as in `submodel`.
        format
            ``"safetensors"``, ``"torch"`` (an exported program, ``.pt2``), ``"onnx"`` or ``"executorch"``; by default
            what the ending of `out` says.
        """
        return export_submodel(self, self.selected(level, budget=budget), Path(out), format)

    def hub_model(self, level: str | None = None, *, budget: str | Budget | Iterable[str] | None = None) -> HubModel:
        """Return a trained sub-model that has ``save_pretrained``, ``from_pretrained`` and ``push_to_hub``.

        It needs huggingface_hub (``nestling[hub]``) and a model of `nestling.nets`; the arguments are those of
        `submodel`.
        """
        return hub_model(self, self.selected(level, budget=budget))

    def tested(self, ratio: float) -> tuple[str, float | None]:
        """Return the first metric of the sub-model of a ratio on the run's test samples: its name and its value.

        It is that of summary.json for levels that the run tested after its last round. Other sub-models are tested
        now; the value is None, and an event says why, if the data cannot be opened or clients have their own models.
        """
        simulation, state = self._simulation, self._state
        settings, setup, data = simulation.settings, simulation.setup, simulation.data
        metric = setup.task.metrics[0].name
        final = self.summary.get("final", {})
        name = next((name for name, known in simulation.levels.items() if known == ratio), "")
        recorded = final.get("submodels", {}).get(name, {}).get(metric)
        if final.get("round") == self.round and recorded is not None:
            return metric, recorded
        if setup.private:
            report("not tested", f"clients of {setup.method.name} have models of their own")
            return metric, None
        try:
            with clean_torch(settings.threads, settings.device):
                clients = SimulatedClients(simulation, LocalEngine(partial(GroupWorker, setup, data)))
                figures, _ = evaluate(setup, state, clients, data, levels={"one": ratio}, settings=settings.evaluate)
        except NestlingError as problem:
            report("not tested", f"the sub-model of ratio {ratio:g} could not be tested: {problem}")
            return metric, None
        return metric, figures["submodels"]["one"][metric]

    def submodel_of(self, choice: Choice) -> nn.Module:
        """Return the trained sub-model that was chosen."""
        simulation, state, plan = self._simulation, self._state, choice.size.plan
        setup, settings, data = simulation.setup, simulation.settings, simulation.data
        full = setup.global_plan(state.method_state)
        complete = state.separate_global_model(setup) if plan == full else {}
        if setup.private and not complete and state.separate_global_model(setup):
            raise RunError(
                f"the server of {setup.method.name} has no model of level {choice.level.name!r}, because clients keep "
                "theirs: only 'full' can be loaded"
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
    ...     file = nestling.load(f"{out}/first").export(f"{out}/small.safetensors", budget="100 kB")
    >>> sum(parameter.numel() for parameter in small.parameters())
    6330
    >>> file.choice.size.bytes, file.difference
    (97600, 0.0)
    """
    path = Path(folder)
    if not (path / CONFIG).is_file():
        raise RunError(f"{str(path)!r} is not a run directory: it holds no {CONFIG}")
    overrides = Overrides(from_file(path / CONFIG), model, dataset, partition, method, task)
    identity = Identity.read(path)
    identity.check_objects(path, describe(overrides), "nestling.load", KINDS if identity.data is None else _NEEDED)
    overrides = replace(overrides, levels_text=identity.levels or None)
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
