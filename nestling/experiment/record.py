"""The files of a run directory that people and programs read: metrics.jsonl, summary.json, model.safetensors.

metrics.jsonl holds nothing that depends on the clock, so that the same seed gives the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Collection, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import tomli_w

from nestling.cut.wire import save
from nestling.errors import RunError
from nestling.experiment.directory import METRICS, MODEL, SUBMODELS
from nestling.experiment.presets import PRESETS
from nestling.experiment.simulation import Simulation
from nestling.files import sync, write_whole
from nestling.methods.nefl.nefl_plans import STEP
from nestling.methods.registry import part_names
from nestling.server.state import ServerState
from nestling.settings import Experiment, as_value

_COPY = "put back a copy of it, or start a new run"


class Record:
    """The record of a run, round by round. Creating one only reads; `start` makes metrics.jsonl match it.

    Parameters
    ----------
    folder
        The run directory; None keeps rounds in memory only.
    done
        The rounds of the checkpoint; lines of later rounds in metrics.jsonl are dropped, as these are run again.
    experiment
        The settings; evaluations that are not due by them are dropped. A run that is extended has evaluated the round
        that was its last.
    digest
        What `digest` returned for these rounds when the checkpoint was written; empty if unknown.
    """

    def __init__(
        self, folder: Path | None, done: int = 0, experiment: Experiment | None = None, digest: str = ""
    ) -> None:
        self._path = None if folder is None else folder / METRICS
        self._every = 1 if experiment is None else experiment.evaluate.every
        self.rounds: list[dict[str, Any]] = []
        if self._path is not None:
            lines = (self._read() or b"").split(b"\n")[:-1][:done]  # an incomplete last line is dropped
            if len(lines) < done:
                raise RunError(f"{self._path} tells of {len(lines)} rounds, but the checkpoint of {done}: {_COPY}")
            self.rounds = [self._parsed(line, number) for number, line in enumerate(lines, start=1)]
            if digest and digest != self.digest(done):
                raise RunError(f"{self._path} was changed after the checkpoint of round {done} was written: {_COPY}")
        if experiment is not None:
            for entry in self.rounds:
                if not due(experiment, entry["round"]):
                    entry.pop("evaluation", None)

    def start(self) -> None:
        """Make metrics.jsonl hold this record and nothing else."""
        if self._path is not None and self._text() != self._read():
            write_whole(self._path, self._text())

    def add(self, line: dict[str, Any]) -> None:
        """Append the line of a round."""
        self.rounds.append(line)
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(_line(line))

    def evaluated(self, figures: dict[str, Any]) -> None:
        """Add the figures of an evaluation to the last round."""
        self.rounds[-1]["evaluation"] = figures
        if self._path is not None:
            write_whole(self._path, self._text())

    def digest(self, done: int) -> str:
        """Return a digest of the first rounds, without evaluations that are dropped when a run is extended."""
        digest = hashlib.sha256()
        for entry in self.rounds[:done]:
            on_schedule = entry["round"] % self._every == 0
            kept = entry if on_schedule else {key: value for key, value in entry.items() if key != "evaluation"}
            digest.update(_line(kept).encode())
        return digest.hexdigest()

    def sync(self) -> None:
        """Force the file to disk, before a checkpoint is written that needs it."""
        if self._path is not None:
            sync(self._path)

    def _read(self) -> bytes | None:
        return self._path.read_bytes() if self._path is not None and self._path.exists() else None

    def _text(self) -> bytes:
        return "".join(_line(entry) for entry in self.rounds).encode()

    def _parsed(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            entry = json.loads(line.decode("utf-8"))
        except (ValueError, RecursionError):
            entry = None
        if not isinstance(entry, dict) or entry.get("round") != number:
            raise RunError(f"{self._path}, line {number}, is not what round {number} wrote: {_COPY}")
        return entry


def due(experiment: Experiment, round: int) -> bool:
    """Return whether models are tested after a round.

    >>> experiment = Experiment(rounds=5).with_settings(["evaluate.every=2"])
    >>> [round for round in range(1, 6) if due(experiment, round)]
    [2, 4, 5]
    """
    return round % experiment.evaluate.every == 0 or round == experiment.rounds


def _line(entry: Mapping[str, Any]) -> str:
    return json.dumps(entry, allow_nan=False) + "\n"


def summary(
    simulation: Simulation,
    state: ServerState,
    final: Mapping[str, Any],
    local: Mapping[str, float],
    seconds: float,
    *,
    handed: Collection[str] = (),
) -> dict[str, Any]:
    """Return the summary of a run; `handed` are the kinds of objects that were handed in from Python."""
    experiment, setup = simulation.settings, simulation.setup
    levels = {}
    for name, ratio in simulation.levels.items():
        cost = simulation.costs.cost(setup.submodel_plan(ratio, state.method_state))
        macs = cost.macs // experiment.local.batch_size
        levels[name] = {"ratio": ratio, "parameters": cost.parameters, "bytes": cost.bytes, "macs": macs}
    sources = {name: setup.method.plan.submodel_source(setup, ratio) for name, ratio in simulation.levels.items()}
    return {
        "name": title(experiment),
        "method": setup.method.name,
        **({"parts": part_names(experiment.parts)} if part_names(experiment.parts) else {}),
        "model": experiment.model.name,
        "dataset": simulation.dataset.name,
        "partition": "own" if "partition" in handed else experiment.data.partition,
        "seed": experiment.seed,
        "accelerate": experiment.accelerate,
        "threads": experiment.threads,
        "rounds": experiment.rounds,
        "rounds_done": state.round,
        "final": {"round": state.round, **final},
        "best": state.best,
        **simulation.costs.recorded(state.totals),
        "seconds": seconds,
        "command": command(experiment, handed),
        "levels": levels,
        **({"submodels": sources} if any(sources.values()) else {}),
        "coverage": {name: counts.tolist() for name, counts in state.totals.coverage.items()},
        "local": dict(local),
        "panels": panels(simulation, state),
        "metrics": [asdict(metric) for metric in setup.task.metrics],
    }


def panels(simulation: Simulation, state: ServerState) -> dict[str, Any]:
    """Return what the report draws besides metrics: of sub-models with their own tensors, and of pruned networks."""
    return _submodels_panel(simulation, state) | _kept_panel(simulation, state)


def _kept_panel(simulation: Simulation, state: ServerState) -> dict[str, Any]:
    """Return the share of every axis that the first and the last network keep, if they differ."""
    setup = simulation.setup
    plans = {"first": setup.submodel_plan(1.0), "last": setup.submodel_plan(1.0, state.method_state)}
    if plans["first"] == plans["last"]:
        return {}
    shares = {
        when: {
            name: sum(stop - start for start, stop in plan.runs.get(name, ((0, size),))) / size
            for name, size in setup.axes.axes.items()
        }
        for when, plan in plans.items()
    }
    return {"kept": shares}


def _submodels_panel(simulation: Simulation, state: ServerState) -> dict[str, Any]:
    """Return the step sizes of sub-models, and how large their weights are."""
    setup = simulation.setup
    if not setup.per_submodel:
        return {}
    steps: dict[str, dict[str, float]] = {}
    weights: dict[str, dict[str, float]] = {}
    for level, ratio in simulation.levels.items():
        model = state.download(setup, setup.submodel_plan(ratio, state.method_state))
        steps[level] = {name.removesuffix(STEP): x.item() for name, x in model.items() if name.endswith(STEP)}
        layers = [name for name in model if name in setup.parameters and model[name].dim() > 1]
        weights[level] = {name.removesuffix(".weight"): model[name].abs().mean().item() for name in layers}
    return {"steps": steps, "weights": weights}


def title(experiment: Experiment) -> str:
    """Return the name of an experiment in tables: its preset, or its method and data.

    >>> title(Experiment(method="fedavg"))
    'fedavg-digits'
    """
    return experiment.name or f"{experiment.method}-{experiment.data.name}".replace(":", "-").replace(" ", "-")


def command(experiment: Experiment, handed: Collection[str] = ()) -> str:
    """Return the command that repeats an experiment: its preset with the changed settings, or its config.toml.

    >>> command(PRESETS["heterofl-digits"]().with_settings(["seed=3", "local.lr=0.01"]))
    'nestling run heterofl-digits seed=3 local.lr=0.01'
    >>> command(Experiment(), handed=["model"])
    "nestling.run('config.toml', model=…)"
    """
    if handed:
        return f"nestling.run('config.toml', {', '.join(f'{kind}=…' for kind in handed)})"
    if not experiment.name or experiment.name not in PRESETS:
        return "nestling run config.toml"
    preset, settings = _flat(PRESETS[experiment.name]()), _flat(experiment)
    changes: list[str] = []
    for key, value in settings.items():
        if key in _OWNERS:
            # another model, or method, starts from its own defaults
            base = preset[key] if settings[_OWNERS[key]] == preset[_OWNERS[key]] else {}
            # by their dotted names, unless a name has dots or other signs of its own, or one is left out
            if base.keys() <= value.keys() and all(map(_PLAIN.fullmatch, value)):
                new = {option: one for option, one in value.items() if option not in base or one != base[option]}
                changes += [f"{key}.{option}={format_value(one)}" for option, one in new.items()]
            else:
                changes.append(f"{key}={_toml(value)}")
        elif value != preset[key]:
            changes.append(f"{key}={format_value(value)}")
    return " ".join(["nestling run", experiment.name, *map(shlex.quote, changes)])


_PLAIN = re.compile(r"[A-Za-z0-9_-]+")
_OWNERS = {"options": "method", "model.options": "model.name"}  # options → the setting that they belong to


def _flat(experiment: Experiment) -> dict[str, Any]:
    """Return settings by their dotted names; options are not taken apart."""
    flat: dict[str, Any] = {}
    for key, value in msgspec.to_builtins(experiment).items():
        if isinstance(value, dict) and key != "options":
            flat |= {f"{key}.{name}": inner for name, inner in value.items()}
        else:
            flat[key] = value
    return flat


def format_value(value: Any) -> str:
    """Return a value as `Experiment.with_settings` reads it: texts have quotes only if they could be something else."""
    return value if isinstance(value, str) and as_value(value) == value else _toml(value)


def _toml(value: Any) -> str:
    """Return a value as TOML, on one line.

    >>> _toml({"widths": [8, 16], "norm": "gn", "pool": False})
    '{"widths" = [8, 16], "norm" = "gn", "pool" = false}'
    """
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_toml(key)} = {_toml(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return tomli_w.dumps({"value": value}).partition("= ")[2].strip()


def write_models(folder: Path, simulation: Simulation, state: ServerState) -> None:
    """Write the global model, and the tensors that belong to sub-models alone, each with its plan."""
    setup = simulation.setup
    save(folder / MODEL, state.global_model(setup), setup.global_plan(state.method_state))
    if setup.per_submodel:
        (folder / SUBMODELS).mkdir(exist_ok=True)
        for ratio in simulation.levels.values():
            plan = setup.submodel_plan(ratio, state.method_state)
            save(folder / SUBMODELS / f"{plan.key}.safetensors", state.submodel_tensors(setup, plan), plan)
