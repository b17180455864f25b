"""`run` and `resume`: run an experiment from its first round, or from its last checkpoint, to its end."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from nestling.cut.extract import State
from nestling.data import Partition
from nestling.engines import Engine, LocalEngine, RayEngine
from nestling.engines.parent import end_if_script_is_unguarded
from nestling.engines.ray_start import need_ray
from nestling.errors import ConfigError, RunError
from nestling.events import EventLog, collect, report
from nestling.experiment import checkpoint
from nestling.experiment.callback import Callback
from nestling.experiment.changes import check_rounds, check_settings
from nestling.experiment.directory import CHECKPOINTS, CONFIG, DEVICES, MODEL, SECONDS, SUMMARY, begun_run, new_run
from nestling.experiment.disk import creating, writing
from nestling.experiment.federated_data import Source
from nestling.experiment.first_step import check_first_step
from nestling.experiment.identity import Identity, config_text, describe, with_names
from nestling.experiment.isolation import clean_torch
from nestling.experiment.presets import find
from nestling.experiment.private_devices import check_not_begun_on_devices
from nestling.experiment.record import Record, due, summary, write_models
from nestling.experiment.run_callbacks import run_callbacks
from nestling.experiment.simulation import Overrides, Simulation, check_clock, simulate
from nestling.experiment.simulator import Simulator
from nestling.experiment.statistics_file import write_statistics
from nestling.experiment.trackers import Tracker
from nestling.experiment.worker_factory import worker_factory
from nestling.files import write_whole
from nestling.kernels.device import find_device
from nestling.methods import Method
from nestling.server.evaluation import score
from nestling.server.state import ServerState
from nestling.settings import Experiment, checked, from_file
from nestling.tasks import Task

# Makes what runs the rounds of a simulation, from that, the run directory and what counts clients; and what ends it.
MakeSimulator = Callable[[Simulation, Path | None, Callback], tuple[Simulator, Callable[[], None]]]

_WORKERS_PER_CORE = 16  # more would only wait for each other and use memory


@dataclass(frozen=True, eq=False)
class Result:
    """The result of an experiment.

    Attributes
    ----------
    summary
        The final and best figures, total costs, and the cost of every level.
    rounds
        The record of every round.
    state
        The global model.
    simulation
        The simulation that was run.
    last
        The state of the server after the last round.
    """

    summary: dict[str, Any]
    rounds: list[dict[str, Any]]
    state: dict[str, Tensor]
    simulation: Simulation = field(repr=False)
    last: ServerState = field(repr=False)


def run(
    experiment: Experiment | str | Path,
    *,
    out: str | Path | None = None,
    model: nn.Module | None = None,
    dataset: Source | None = None,
    partition: Partition | None = None,
    method: Method | None = None,
    task: Task | None = None,
    callbacks: Iterable[Callback] = (),
    make_simulator: MakeSimulator | None = None,
    track: str | Tracker | Iterable[str | Tracker] = (),
    quiet: bool = False,
) -> Result:
    """Run an experiment to its end.

    Parameters
    ----------
    experiment
        The settings, the name of a preset, or a TOML file.
    out
        A new directory for its files; without one, nothing is written.
    model, dataset, partition, method, task
        Your own objects, instead of those that the settings name; see `nestling.experiment.simulation.Overrides`.
    callbacks
        Called during the run: your own progress bars, for example.
    make_simulator
        Makes what runs the rounds, if that is not an engine: see `nestling.experiment.device_run`.
    track
        Trackers of experiments: ``"tensorboard"``, ``"wandb"``, ``"trackio"``, ``"mlflow"``, or objects of
        `nestling.experiment.trackers`.
    quiet
        Whether to print no progress; by default there is a line per evaluated round on stderr.

    Examples
    --------
    >>> import nestling
    >>> result = nestling.run(find("fedavg-digits").with_settings(["rounds=1", "local.epochs=1"]))
    >>> sorted(result.summary["final"])[:2]
    ['global_accuracy', 'global_loss']
    """
    end_if_script_is_unguarded()
    settings = checked(experiment if isinstance(experiment, Experiment) else find(str(experiment)))
    _check_resources(settings)
    folder = None if out is None else Path(out)
    callback = run_callbacks(callbacks, track, folder, quiet=quiet)
    overrides = Overrides(settings, model, dataset, partition, method, task)
    overrides = replace(overrides, experiment=with_names(overrides))
    with (
        EventLog(None).active() as log,
        new_run(folder) if folder is not None else nullcontext(),
        clean_torch(settings.threads, settings.device),
        callback,
    ):
        callback.on_phase("reading data")
        objects = describe(overrides) if folder is not None else {}
        simulation = simulate(overrides)
        if make_simulator is None:
            check_clock(simulation)
        check_first_step(simulation)
        if folder is not None:
            with creating(folder):
                Identity.of(simulation, objects).write(folder)
                text = config_text(simulation.settings, objects)
                write_whole(folder / CONFIG, text)  # last: with it, the run has begun
        state = ServerState.start(simulation.setup, folder)
        with writing(folder):
            return _run_rounds(overrides, simulation, state, make_simulator, folder=folder, callback=callback, log=log)


def check_start(experiment: Experiment) -> None:
    """Raise if `run` would refuse an experiment before its first round; this builds its model and opens its data.

    >>> check_start(find("fedavg-digits").with_settings(["method=fedavgg"]))
    Traceback (most recent call last):
        ...
    nestling.errors.MethodError: there is no method 'fedavgg'...; did you mean 'fedavg' or ...
    """
    settings = checked(experiment)
    _check_resources(settings)
    with collect(), clean_torch(settings.threads, settings.device):  # the run itself reports the events
        simulation = simulate(Overrides(settings))
        check_clock(simulation)
        check_first_step(simulation)


def resume(
    out: str | Path,
    *,
    rounds: int | None = None,
    settings: Iterable[str] = (),
    model: nn.Module | None = None,
    dataset: Source | None = None,
    partition: Partition | None = None,
    method: Method | None = None,
    task: Task | None = None,
    callbacks: Iterable[Callback] = (),
    make_simulator: MakeSimulator | None = None,
    track: str | Tracker | Iterable[str | Tracker] = (),
    quiet: bool = False,
) -> Result:
    """Continue a run from its last checkpoint; if the run is done, return its result.

    Parameters
    ----------
    out
        The directory of the run.
    rounds
        The new total number of rounds. The result is that of one long run, so this is refused if earlier rounds
        depend on their number.
    settings
        Settings to change, as on the command line: only those that cannot change numbers, such as ``workers=2``.
    model, dataset, partition, method, task
        The same objects as `run` got, if any.
    callbacks, make_simulator, track, quiet
        As in `run`.

    Examples
    --------
    >>> import tempfile, nestling
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     experiment = find("fedavg-digits").with_settings(["rounds=1", "local.epochs=1"])
    ...     first = nestling.run(experiment, out=f"{folder}/run")
    ...     longer = nestling.resume(f"{folder}/run", rounds=2)
    >>> len(first.rounds), len(longer.rounds)
    (1, 2)
    """
    end_if_script_is_unguarded()
    folder = Path(out)
    callback = run_callbacks(callbacks, track, folder, quiet=quiet)
    with EventLog(None).active() as log, begun_run(folder):
        written = from_file(folder / CONFIG)
        experiment = written.with_settings([*settings, *([] if rounds is None else [f"rounds={rounds}"])])
        overrides = Overrides(experiment, model, dataset, partition, method, task)
        objects = describe(overrides)
        identity = Identity.read(folder)
        first = identity.began
        identity.check_objects(folder, objects)
        identity.check_levels(folder)
        overrides = replace(overrides, levels_text=identity.levels or None)
        check_settings(folder, first, experiment)
        _check_resources(experiment)
        with clean_torch(experiment.threads, experiment.device), callback:
            callback.on_phase("reading data")
            simulation = simulate(overrides)
            state = checkpoint.read(folder, simulation.setup)
            identity.check_built(folder, simulation, started_over=state is None)
            if state is None:
                _check_never_saved(folder)
                state = ServerState.start(simulation.setup, folder)
            check_rounds(first, experiment, simulation.setup.method, state.round)
            if make_simulator is None:
                _check_not_on_devices(folder, simulation, state)
            record = _record(folder, experiment, state)  # damage is found before anything is changed
            finished = _finished_summary(folder, experiment, state)
            with writing(folder):
                if finished is not None:
                    record.start()
                    return Result(finished, record.rounds, state.model, simulation, state)
                identity.check_machine()
                if experiment != written:
                    write_whole(folder / CONFIG, config_text(experiment, objects))
                (folder / SUMMARY).unlink(missing_ok=True)  # of fewer rounds
                checkpoint.clean(folder, state)
                return _run_rounds(
                    overrides, simulation, state, make_simulator, folder=folder, callback=callback, log=log
                )


def _run_rounds(
    overrides: Overrides,
    simulation: Simulation,
    state: ServerState,
    make_simulator: MakeSimulator | None,
    *,
    folder: Path | None,
    callback: Callback,
    log: EventLog,
) -> Result:
    settings, task = simulation.settings, simulation.setup.task
    record = _record(folder, settings, state)
    record.start()
    state = replace(state, best=_best(record, task))
    if folder is not None:
        log.open(folder, state.round)
    began = time.perf_counter() - _earlier_seconds(folder)
    callback.on_start(simulation, state)
    local: dict[str, float] | None = None

    def save(*, tidy: bool = True) -> None:
        if folder is not None and state.round:
            statistics = simulator.norm_statistics(state, measure=False)
            _save(folder, state, record, time.perf_counter() - began, statistics=statistics, tidy=tidy)

    make = make_simulator or partial(_on_engine, overrides, partial(save, tidy=False))  # it is called during a round
    simulator, close = make(simulation, folder, callback)
    try:
        while state.round < settings.rounds:
            log.round = state.round + 1
            after, line = simulator.run_round(state)
            if due(settings, after.round):
                callback.on_evaluation()
                line["evaluation"], local = simulator.evaluate(after)
                after = replace(after, best=_better(after.best, line, task))
            record.add(line)
            state = after
            callback.on_round(line, state)
            if state.round % settings.checkpoint_every == 0:
                save()
        callback.on_phase("testing" if local is None else "saving")
        if local is None:  # all rounds were done already, and the record does not hold the clients' accuracies
            figures, local = simulator.evaluate(state)
            if "evaluation" not in record.rounds[-1]:  # the run has fewer rounds than before
                record.evaluated(figures)
                state = replace(state, best=_best(record, task))
        simulator.norm_statistics(state, measure=folder is not None)  # `save` writes them
    except BaseException:  # Ctrl-C, a full disk, a loss that is not a number: complete rounds are saved
        save()
        raise
    finally:
        close()
    seconds = time.perf_counter() - began
    totals = log.totals()
    full_summary = {
        **summary(simulation, state, record.rounds[-1]["evaluation"], local, seconds, handed=overrides.handed()),
        **{key: value for key, value in record.rounds[-1].items() if key == "privacy"},
        "clients_dropped": sum(line["dropped"] for line in record.rounds),
        **_discarded(record),
        "workers_lost": totals.get("worker lost", 0),
        "events": totals,  # these two and the seconds depend on the machine
    }
    if folder is not None:
        save()
        write_models(folder, simulation, state)
        write_whole(folder / SUMMARY, (json.dumps(full_summary, indent=2) + "\n").encode())
    result = Result(full_summary, record.rounds, state.model, simulation, state)
    callback.on_end(result)
    return result


def _discarded(record: Record) -> dict[str, int]:
    """Return the number of clients whose updates were ignored, where rounds may ignore some."""
    counts = [line["discarded"] for line in record.rounds if "discarded" in line]
    return {"clients_discarded": sum(counts)} if counts else {}


def _on_engine(
    overrides: Overrides,
    before_last_try: Callable[[], None],
    simulation: Simulation,
    folder: Path | None,
    callback: Callback,
) -> tuple[Simulator, Callable[[], None]]:
    del folder
    engine = _engine(overrides, simulation, before_last_try)
    return Simulator(simulation, engine, callback.on_client, callback.on_training), engine.close


def _record(folder: Path | None, experiment: Experiment, state: ServerState) -> Record:
    digest = "" if folder is None else checkpoint.metrics_digest(folder, state.round)
    return Record(folder, state.round, experiment, digest)


def _best(record: Record, task: Task) -> dict[str, Any]:
    """Return the best evaluation of a record, and its round; empty before the first."""
    best: dict[str, Any] = {}
    for entry in record.rounds:
        best = _better(best, entry, task) if "evaluation" in entry else best
    return best


def _better(best: dict[str, Any], entry: dict[str, Any], task: Task) -> dict[str, Any]:
    """Return the better of the best evaluation so far and that of a round."""
    figures = entry["evaluation"]
    if best and score(figures, task.metrics) <= score(best, task.metrics):
        return best
    return {"round": entry["round"], **figures}


def _finished_summary(folder: Path, experiment: Experiment, state: ServerState) -> dict[str, Any] | None:
    """Return the summary in the directory of a run that is done; None if something is left to do."""
    if state.round < experiment.rounds or not (folder / MODEL).is_file():
        return None
    try:
        saved: dict[str, Any] = json.loads((folder / SUMMARY).read_bytes())
        complete = saved["rounds"] == saved["rounds_done"] == experiment.rounds
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        report("summary damaged", f"{folder / SUMMARY} cannot be read, so it is written again")
        return None
    return saved if complete else None


def _check_never_saved(folder: Path) -> None:
    """Raise if a directory without checkpoints had some before: starting over would discard its rounds."""
    if (folder / SECONDS).exists() or (folder / SUMMARY).exists():  # both are written after the first checkpoint
        raise RunError(
            f"{str(folder)!r} has lost all its checkpoints: put back a copy of {CHECKPOINTS!r}, or start a new run"
        )


def _check_not_on_devices(folder: Path, simulation: Simulation, state: ServerState) -> None:
    """Raise if what clients keep is on real devices, or the ε of a run is theirs."""
    check_not_begun_on_devices(folder, simulation.setup.method)
    if state.round and simulation.setup.clients_keep and (folder / DEVICES).exists():
        raise RunError(
            f"the clients of {str(folder)!r} keep something from round to round, which is on the devices that trained: "
            "go on with these, or start a new run"
        )


def _check_resources(experiment: Experiment) -> None:
    """Raise if this machine lacks the packages, cores or device that an experiment needs."""
    if experiment.engine == "ray":
        need_ray()  # its workers find out themselves which device they have
        return
    most = _WORKERS_PER_CORE * (os.cpu_count() or 1)
    if experiment.workers > most:
        raise ConfigError(
            f"workers={experiment.workers} are too many for this machine: at most {most}, {_WORKERS_PER_CORE} per core"
        )
    find_device(experiment.device)


def _engine(overrides: Overrides, simulation: Simulation, before_last_try: Callable[[], None]) -> Engine:
    settings, make = simulation.settings, worker_factory(overrides, simulation)
    timeout = settings.worker_timeout
    if settings.engine == "ray":
        gpus, address = settings.device.startswith("cuda"), settings.address
        return RayEngine(make, settings.workers, address, gpus, timeout=timeout, before_last_try=before_last_try)
    return LocalEngine(make, settings.workers, timeout=timeout, before_last_try=before_last_try)


def _save(
    folder: Path,
    state: ServerState,
    record: Record,
    seconds: float,
    *,
    statistics: Mapping[str, State] | None = None,
    tidy: bool = True,
) -> None:
    if statistics:
        write_statistics(folder, state.round, statistics)
    record.sync()
    checkpoint.write(folder, state, record.digest(state.round), tidy=tidy)
    write_whole(folder / SECONDS, json.dumps({"seconds": seconds}).encode())


def _earlier_seconds(folder: Path | None) -> float:
    """Return how long this run took until its last checkpoint."""
    path = None if folder is None else folder / SECONDS
    if path is None or not path.exists():
        return 0.0
    try:
        return float(json.loads(path.read_bytes())["seconds"])
    except (ValueError, KeyError, TypeError):
        report("stop watch lost", f"{path} cannot be read: the time that this run takes is counted from now on")
        return 0.0
