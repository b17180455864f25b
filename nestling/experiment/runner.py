"""`run` and `resume`: an experiment from its first round, or its last checkpoint, to its end."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from nestling.data import Dataset, Partition, Text
from nestling.engines import Engine, LocalEngine, RayEngine
from nestling.engines.packing import travels
from nestling.engines.parent import end_if_script_is_unguarded
from nestling.engines.ray import need_ray
from nestling.errors import ConfigError, RunError
from nestling.events import EventLog, report
from nestling.experiment import checkpoint
from nestling.experiment.changes import check_rounds, check_settings
from nestling.experiment.directory import CHECKPOINTS, CONFIG, MODEL, SECONDS, SUMMARY, begun_run, new_run
from nestling.experiment.disk import creating, writing
from nestling.experiment.evaluation import evaluate, score
from nestling.experiment.identity import Identity, config_text, describe, with_names
from nestling.experiment.isolation import clean_torch
from nestling.experiment.presets import find
from nestling.experiment.record import Record, due, summary, write_models
from nestling.experiment.round import run_round
from nestling.experiment.server import Server
from nestling.experiment.setting import Overrides, Setting, setting
from nestling.experiment.worker import Worker
from nestling.files import write_whole
from nestling.kernels.device import find_device
from nestling.methods import Method
from nestling.settings import Experiment, checked, from_file
from nestling.tasks import Task

_WORKERS_PER_CORE = 16  # more would only wait for each other, and fill the memory


class Watcher(Protocol):
    """Somebody who looks on: a progress bar, TensorBoard, a notebook."""

    def start(self, made: Setting, server: Server) -> None:
        """An experiment begins, or goes on, after so many rounds."""

    def job(self) -> None:
        """A client has answered."""

    def testing(self) -> None:
        """Models are being tested."""

    def round(self, told: dict[str, Any]) -> None:
        """A round is over."""


class Silent:
    """Nobody looks on."""

    def start(self, made: Setting, server: Server) -> None:
        """Say nothing."""

    def job(self) -> None:
        """Say nothing."""

    def testing(self) -> None:
        """Say nothing."""

    def round(self, told: dict[str, Any]) -> None:
        """Say nothing."""


@dataclass(frozen=True, eq=False)
class Result:
    """What came of an experiment.

    Attributes
    ----------
    summary
        Final and best figures, what was spent, and what every level costs.
    rounds
        What was told of every round.
    state
        The global model.
    setting
        What it was done with.
    """

    summary: dict[str, Any]
    rounds: list[dict[str, Any]]
    state: dict[str, Tensor]
    setting: Setting = field(repr=False)


def run(
    experiment: Experiment | str | Path,
    *,
    out: str | Path | None = None,
    model: nn.Module | None = None,
    dataset: Dataset | Text | None = None,
    partition: Partition | None = None,
    method: Method | None = None,
    watcher: Watcher | None = None,
) -> Result:
    """Run an experiment to its end.

    Parameters
    ----------
    experiment
        The settings, the name of a preset, or a TOML file.
    out
        A new directory for its files; without one, nothing is written.
    model, dataset, partition, method
        Your own, instead of those that the settings name.
    watcher
        Is told of every round.

    Examples
    --------
    >>> import nestling
    >>> result = nestling.run(find("fedavg-digits").with_settings(["rounds=1", "local.epochs=1"]))
    >>> sorted(result.summary["final"])[:2]
    ['global_accuracy', 'global_loss']
    """
    end_if_script_is_unguarded()
    chosen = checked(experiment if isinstance(experiment, Experiment) else find(str(experiment)))
    _able(chosen)
    folder = None if out is None else Path(out)
    overrides = Overrides(chosen, model, dataset, partition, method)
    overrides = replace(overrides, experiment=with_names(overrides))
    with (
        EventLog(None).active() as log,
        new_run(folder) if folder is not None else nullcontext(),
        clean_torch(chosen.threads, chosen.device),
    ):
        objects = describe(overrides) if folder is not None else {}
        made = setting(overrides)
        if folder is not None:
            with creating(folder):
                Identity.of(made, objects).write(folder)
                write_whole(folder / CONFIG, config_text(made.experiment, objects))  # last: with it, the run has begun
        server = Server.start(made, folder)
        with writing(folder):
            return _run_rounds(overrides, made, server, folder, watcher or Silent(), log=log)


def resume(
    out: str | Path,
    *,
    rounds: int | None = None,
    settings: Iterable[str] = (),
    model: nn.Module | None = None,
    dataset: Dataset | Text | None = None,
    partition: Partition | None = None,
    method: Method | None = None,
    watcher: Watcher | None = None,
) -> Result:
    """Go on with a run from its last checkpoint; a run that is over gives its result again.

    Parameters
    ----------
    out
        The directory of the run.
    rounds
        How many rounds the run shall have in all. The result is that of one long run, so this is refused where
        earlier rounds depend on how many there are.
    settings
        Settings to change, as on the command line: only those that cannot change numbers, such as ``workers=2``.
    model, dataset, partition, method
        Your own, the same as the run was started with.
    watcher
        Is told of every round.

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
    with EventLog(None).active() as log, begun_run(folder):
        written = from_file(folder / CONFIG)
        experiment = written.with_settings([*settings, *([] if rounds is None else [f"rounds={rounds}"])])
        overrides = Overrides(experiment, model, dataset, partition, method)
        objects = describe(overrides)
        identity = Identity.read(folder)
        first = written if identity is None else identity.began
        if identity is not None:
            identity.check_objects(folder, objects)
        check_settings(folder, first, experiment)
        _able(experiment)
        with clean_torch(experiment.threads, experiment.device):
            made = setting(overrides)
            server = checkpoint.read(folder, made)
            if identity is not None:
                identity.check_built(folder, made, started_over=server is None)
            if server is None:
                _check_never_saved(folder)
                server = Server.start(made, folder)
            check_rounds(first, experiment, made.method, server.round)
            record = _record(folder, experiment, server)  # damage is found before anything is changed
            summarised = _finished(folder, experiment, server)
            with writing(folder):
                if summarised is not None:
                    record.start()
                    return Result(summarised, record.rounds, server.state, made)
                if identity is not None:
                    identity.check_machine()
                if experiment != written:
                    write_whole(folder / CONFIG, config_text(experiment, objects))
                (folder / SUMMARY).unlink(missing_ok=True)  # of fewer rounds
                checkpoint.clean(folder, server)
                return _run_rounds(overrides, made, server, folder, watcher or Silent(), log=log)


def _run_rounds(
    overrides: Overrides, made: Setting, server: Server, folder: Path | None, watcher: Watcher, *, log: EventLog
) -> Result:
    experiment = made.experiment
    record = _record(folder, experiment, server)
    record.start()
    server.best = _best(record, made.task)
    if folder is not None:
        log.open(folder, server.round)
    began = time.perf_counter() - _spent(folder)
    watcher.start(made, server)
    local: dict[str, float] | None = None

    def save_whole_rounds() -> None:
        if folder is not None and server.round:
            _save(folder, server, record, time.perf_counter() - began, tidy=False)  # a round is under way

    engine = _engine(overrides, made, save_whole_rounds)
    try:
        while server.round < experiment.rounds:
            log.round = server.round + 1
            after, told = run_round(made, server, engine, watcher.job)
            if due(experiment, after.round):
                watcher.testing()
                told["evaluation"], local = evaluate(made, after, engine)
                after.best = _better(after.best, told, made.task)
            record.add(told)
            server = after
            watcher.round(told)
            if folder is not None and server.round % experiment.checkpoint == 0:
                _save(folder, server, record, time.perf_counter() - began)
        if local is None:  # all rounds were done already: its clients' accuracies are not in its record
            figures, local = evaluate(made, server, engine)
            if "evaluation" not in record.rounds[-1]:  # there were to be more rounds
                record.evaluated(figures)
                server.best = _best(record, made.task)
    except BaseException:  # Ctrl-C, a full disk, a loss that is no number: whole rounds are kept
        if folder is not None and server.round:
            _save(folder, server, record, time.perf_counter() - began)
        raise
    finally:
        engine.close()
    final, seconds = record.rounds[-1]["evaluation"], time.perf_counter() - began
    told = summary(made, server, final, local, seconds, handed=overrides.handed())
    told["clients_dropped"] = sum(one["dropped"] for one in record.rounds)
    told["workers_lost"] = log.totals().get("worker lost", 0)
    told["events"] = log.totals()  # these two depend on the machine, and nothing else here but the seconds
    if folder is not None:
        _save(folder, server, record, time.perf_counter() - began)
        write_models(folder, made, server)
        write_whole(folder / SUMMARY, (json.dumps(told, indent=2) + "\n").encode())
    return Result(told, record.rounds, server.state, made)


def _record(folder: Path | None, experiment: Experiment, server: Server) -> Record:
    digest = "" if folder is None else checkpoint.metrics_digest(folder, server.round)
    return Record(folder, server.round, experiment, digest)


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


def _finished(folder: Path, experiment: Experiment, server: Server) -> dict[str, Any] | None:
    """Return the summary of a run that is over, as its directory holds it; None where something is left to do."""
    if server.round < experiment.rounds or not (folder / MODEL).is_file():
        return None
    try:
        held: dict[str, Any] = json.loads((folder / SUMMARY).read_bytes())
        complete = held["rounds"] == held["rounds_done"] == experiment.rounds
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        report("summary damaged", f"{folder / SUMMARY} cannot be read, so it is written again")
        return None
    return held if complete else None


def _check_never_saved(folder: Path) -> None:
    """Raise where a directory has no checkpoint but had one: to start over would throw its rounds away."""
    if (folder / SECONDS).exists() or (folder / SUMMARY).exists():  # both are written after the first checkpoint
        raise RunError(
            f"{str(folder)!r} has lost all its checkpoints: put back a copy of {CHECKPOINTS!r}, or start a new run"
        )


def _able(experiment: Experiment) -> None:
    """Raise before any work where this machine has not what an experiment runs on."""
    if experiment.engine == "ray":
        need_ray()  # which device its workers have, they must find out themselves
        return
    most = _WORKERS_PER_CORE * (os.cpu_count() or 1)
    if experiment.workers > most:
        raise ConfigError(
            f"workers={experiment.workers} are too many for this machine: at most {most}, {_WORKERS_PER_CORE} per core"
        )
    find_device(experiment.device)


def _engine(overrides: Overrides, made: Setting, before_last_try: Callable[[], None]) -> Engine:
    experiment, make = made.experiment, _make(overrides, made)
    timeout = experiment.worker_timeout
    if experiment.engine == "ray":
        gpus, address = experiment.device.startswith("cuda"), experiment.address
        return RayEngine(make, experiment.workers, address, gpus, timeout=timeout, before_last_try=before_last_try)
    return LocalEngine(make, experiment.workers, timeout=timeout, before_last_try=before_last_try)


def _make(overrides: Overrides, made: Setting) -> Callable[[], Worker]:
    """How workers are made: with what we have built, or by building again a model of a kind that cannot be sent."""
    experiment = made.experiment
    if (experiment.engine == "local" and experiment.workers == 1) or travels(made.model):
        return partial(_worker, experiment.threads, partial(Worker, made))
    overrides = replace(overrides, dataset=made.dataset, partition=made.partition)
    return partial(_worker, experiment.threads, partial(Worker.from_overrides, overrides))


def _worker(threads: int, make: Callable[[], Worker]) -> Worker:
    """Build a worker in the process that it is for, in which PyTorch uses so many threads from now on."""
    torch.set_num_threads(threads)
    return make()


def _save(folder: Path, server: Server, record: Record, seconds: float, *, tidy: bool = True) -> None:
    record.sync()
    checkpoint.write(folder, server, record.digest(server.round), tidy=tidy)
    write_whole(folder / SECONDS, json.dumps({"seconds": seconds}).encode())


def _spent(folder: Path | None) -> float:
    """Seconds that earlier parts of this run took, as of its last checkpoint."""
    path = None if folder is None else folder / SECONDS
    if path is None or not path.exists():
        return 0.0
    try:
        return float(json.loads(path.read_bytes())["seconds"])
    except (ValueError, KeyError, TypeError):
        report("stop watch lost", f"{path} cannot be read: the time that this run takes is counted from now on")
        return 0.0
