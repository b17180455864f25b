"""`run` and `resume`: an experiment from its first round, or its last checkpoint, to its end."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from nestling.data import Dataset, Partition, Text
from nestling.engines import Engine, LocalEngine, RayEngine
from nestling.engines.messages import travels
from nestling.engines.ray import need_ray
from nestling.errors import RunError
from nestling.files import write_whole
from nestling.local.device import find_device
from nestling.methods import Method
from nestling.run import checkpoint
from nestling.run.config import Experiment, checked, from_file
from nestling.run.disk import creating, writing
from nestling.run.evaluate import evaluate, score
from nestling.run.presets import find
from nestling.run.record import Record, summary, write_models
from nestling.run.round import play
from nestling.run.server import Server
from nestling.run.setting import Blueprint, Setting, setting
from nestling.run.workshop import Workshop


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
    chosen = checked(experiment if isinstance(experiment, Experiment) else find(str(experiment)))
    _able(chosen)
    folder = None if out is None else _new(Path(out))
    blueprint = Blueprint(chosen, model, dataset, partition, method)
    with _one_thread():
        made = setting(blueprint)
        if folder is not None:
            with creating(folder):
                folder.mkdir(parents=True, exist_ok=True)
                write_whole(folder / "config.toml", chosen.to_toml().encode())
        server = Server.start(made, folder)
        with writing(folder):
            return _play(blueprint, made, server, folder, watcher or Silent())


def resume(out: str | Path, *, watcher: Watcher | None = None, **own: Any) -> Result:
    """Go on with a run from its last checkpoint; a run that is over gives its result again.

    A model, dataset, partition or method of your own must be given again, the same as before.
    """
    folder = Path(out)
    if not (folder / "config.toml").is_file():
        raise RunError(f"{str(folder)!r} is not a run directory: it holds no config.toml")
    blueprint = Blueprint(from_file(folder / "config.toml"), **own)
    _able(blueprint.experiment)
    with _one_thread():
        made = setting(blueprint)
        server = checkpoint.read(folder, made) or Server.start(made, folder)
        with writing(folder):
            return _play(blueprint, made, server, folder, watcher or Silent())


def _play(blueprint: Blueprint, made: Setting, server: Server, folder: Path | None, watcher: Watcher) -> Result:
    experiment = made.experiment
    record = Record(folder, server.round)
    began = time.perf_counter() - _spent(folder)
    watcher.start(made, server)
    final, local = _last(record)
    engine = _engine(blueprint, made)
    try:
        while server.round < experiment.rounds:
            after, told = play(made, server, engine, watcher.job)
            if after.round % experiment.evaluate.every == 0 or after.round == experiment.rounds:
                watcher.testing()
                final, local = evaluate(made, after, engine)
                told["evaluation"] = final
                if not after.best or score(final) > score(after.best):
                    after.best = {"round": after.round, **final}
            record.add(told)
            server = after
            watcher.round(told)
            if folder is not None and server.round % experiment.checkpoint == 0:
                _save(folder, server, record, time.perf_counter() - began)
        if local is None:  # a run that was over already: its clients' accuracies are not in its record
            final, local = evaluate(made, server, engine)
    except BaseException:  # Ctrl-C, a full disk, a loss that is no number: whole rounds are kept
        if folder is not None and server.round:
            _save(folder, server, record, time.perf_counter() - began)
        raise
    finally:
        engine.close()
    told = summary(made, server, final, local, time.perf_counter() - began)
    if folder is not None:
        _save(folder, server, record, time.perf_counter() - began)
        write_models(folder, made, server)
        write_whole(folder / "summary.json", (json.dumps(told, indent=2) + "\n").encode())
    return Result(told, record.rounds, server.state, made)


def _able(experiment: Experiment) -> None:
    """Raise before any work where this machine has not what an experiment runs on."""
    if experiment.engine == "ray":
        need_ray()  # which device its workers have, they must find out themselves
    else:
        find_device(experiment.device)


def _engine(blueprint: Blueprint, made: Setting) -> Engine:
    experiment = made.experiment
    if experiment.engine == "ray":
        gpus = experiment.device.startswith("cuda")
        return RayEngine(_make(blueprint, made), experiment.workers, experiment.address, gpus)
    return LocalEngine(_make(blueprint, made), experiment.workers)


def _make(blueprint: Blueprint, made: Setting) -> Callable[[], Workshop]:
    """How workers are made: with what we have built, or by building again a model of a kind that cannot be sent."""
    experiment = made.experiment
    if (experiment.engine == "local" and experiment.workers == 1) or travels(made.model):
        return partial(Workshop, made)
    return partial(Workshop.from_blueprint, replace(blueprint, dataset=made.dataset, partition=made.partition))


def _save(folder: Path, server: Server, record: Record, seconds: float) -> None:
    record.sync()
    checkpoint.write(folder, server)
    write_whole(folder / "seconds.json", json.dumps({"seconds": seconds}).encode())


def _spent(folder: Path | None) -> float:
    """Seconds that earlier parts of this run took, as of its last checkpoint."""
    path = None if folder is None else folder / "seconds.json"
    if path is None or not path.exists():
        return 0.0
    return float(json.loads(path.read_text())["seconds"])


def _last(record: Record) -> tuple[dict[str, Any], dict[str, float] | None]:
    """The figures of the last evaluation in a record; nothing is known of single clients."""
    return next((told["evaluation"] for told in reversed(record.rounds) if "evaluation" in told), {}), None


def _new(folder: Path) -> Path:
    with creating(folder):
        used = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    if used:
        hint = (
            f"; 'nestling resume {shlex.quote(str(folder))}' goes on with it"
            if (folder / "config.toml").exists()
            else ""
        )
        raise RunError(f"{str(folder)!r} is not empty: give another directory{hint}")
    return folder


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let PyTorch use one thread: faster for small models, and the same numbers in every process."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
