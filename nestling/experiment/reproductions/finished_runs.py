"""``results.json``: the finished runs of a reproduction, small enough to be committed and continued elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from nestling.errors import RunError, first_line
from nestling.experiment.changes import HARMLESS, changed_settings
from nestling.experiment.directory import CONFIG, METRICS, SUMMARY
from nestling.files import write_whole
from nestling.settings import Experiment, from_file, read, with_new_names

RESULTS = "results.json"
_FORMAT = "nestling-results-1"
# Settings of the machine: a run is the same experiment with any of them, if not to the last bit.
_MACHINE = HARMLESS | {"device", "threads", "accelerate", "group_clients"}
_BESIDE = ("submodels", "networks")  # figures by level, which tables do not show
_MOST_POINTS = 30  # of a curve: a run should take about 4 KB
_DERIVED = ("generalization_gap", "averaged_accuracy")
_CURVE = ("global_accuracy", "local_accuracy", "worst_submodel", "mean_submodel", "perplexity", "accuracy", *_DERIVED)


class FinishedRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A run that is done.

    Attributes
    ----------
    preset, seed
        What was run; the preset's name has its scale.
    version
        The version of Nestling that ran it.
    settings
        All settings of the run.
    final, best
        The figures after the last round, and at the best round on the test set, each with its ``round``.
    bytes_down, bytes_up, client_macs, seconds
        What it took.
    curve
        The evaluated rounds: ``round``, measures with six digits, ``bytes_down``, ``client_macs`` and, with devices,
        ``simulated_minutes`` until then, one list each. Of many, some are left out, but neither the best nor the last
        one.
    submodels
        Of every level after the last round: the parameters of its sub-model, and what the task measures first.
    """

    preset: str
    seed: int
    version: str
    settings: dict[str, Any]
    final: dict[str, int | float | None]
    best: dict[str, int | float | None]
    bytes_down: int
    bytes_up: int
    client_macs: int
    seconds: float
    curve: dict[str, list[int | float | None]]
    submodels: dict[str, tuple[int, float | None]] = {}

    @property
    def key(self) -> tuple[str, int]:
        """The preset and the seed."""
        return self.preset, self.seed


Finished = dict[tuple[str, int], FinishedRun]


def read_run(folder: Path, preset: str, version: str) -> FinishedRun | None:
    """Return the run of a directory, or None if it is not finished."""
    path = folder / SUMMARY
    if not path.exists():
        return None
    try:
        summary = json.loads(path.read_bytes())
        lines = [json.loads(line) for line in (folder / METRICS).read_bytes().splitlines()]
        evaluated = _evaluated(lines)
        derived = {line["round"]: {name: line["evaluation"].get(name) for name in _DERIVED} for line in evaluated}
        shown = _few(evaluated, summary["best"].get("round"))
        curve = {name: [line[name] for line in shown] for name in ("round", "bytes_down", "client_macs")}
        if any(line["simulated_seconds"] is not None for line in shown):
            curve["simulated_minutes"] = [_short(line["simulated_seconds"] / 60) for line in shown]
        for name in _CURVE:
            if any(line["evaluation"].get(name) is not None for line in shown):
                curve[name] = [_short(line["evaluation"].get(name)) for line in shown]
        settings = msgspec.to_builtins(from_file(folder / CONFIG))
        settings["data"]["dir"] = ""  # a folder of this machine
        settings["model"]["weights"] = Path(settings["model"]["weights"]).name
        done = FinishedRun(
            preset,
            summary["seed"],
            version,
            settings,
            _figures(summary["final"], derived),
            _figures(summary["best"], derived),
            summary["bytes_down"],
            summary["bytes_up"],
            summary["client_macs"],
            summary["seconds"],
            curve,
            _submodels(summary),
        )
        return msgspec.json.decode(msgspec.json.encode(done), type=FinishedRun)  # the same as from results.json
    except (ValueError, KeyError, TypeError, OSError) as problem:
        raise RunError(f"{str(folder)!r} cannot be read as a finished run ({first_line(problem)}): remove it") from None


def read_results(path: Path) -> Finished:
    """Return the finished runs that a file lists; raise if it is not such a file."""
    try:
        data = json.loads(path.read_bytes())
        if not isinstance(data, dict) or data.get("format") != _FORMAT:
            raise RunError(f"{str(path)!r} is not a results.json of 'nestling reproduce'")
        runs = msgspec.convert(data["runs"], list[FinishedRun])
    except OSError as problem:
        raise RunError(f"{str(path)!r} cannot be read: {problem.strerror}") from None
    except (ValueError, KeyError) as problem:
        if isinstance(problem, RunError):
            raise
        raise RunError(f"{str(path)!r} is not a results.json of 'nestling reproduce': {first_line(problem)}") from None
    return {run.key: run for run in runs}


def write_results(path: Path, runs: Iterable[FinishedRun]) -> None:
    """Write finished runs to a file, one line each in a fixed order, so that version control merges them."""
    lines = [json.dumps(msgspec.to_builtins(run), sort_keys=True) for run in sorted(runs, key=lambda run: run.key)]
    body = ",\n".join(lines)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, f'{{"format": "{_FORMAT}", "runs": [\n{body}\n]}}\n'.encode())


def check_settings(run: FinishedRun, wanted: Experiment, source: str) -> None:
    """Raise if a run was made with other settings than those that are wanted now."""
    stored = read(with_new_names(run.settings))
    name = Path(wanted.model.weights).name  # other machines have the file elsewhere
    same_file = msgspec.structs.replace(wanted, model=msgspec.structs.replace(wanted.model, weights=name))
    other = sorted(changed_settings(stored, same_file).keys() - _MACHINE)
    if other:
        raise RunError(
            f"{source} holds {run.preset} (seed {run.seed}) with other settings ({', '.join(other)}): "
            "give the same settings, or another --out"
        )


def _evaluated(lines: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the rounds that were evaluated, with what follows from their record.

    The generalization gap is the accuracy of clients on their own samples, as a mean over the rounds since the last
    evaluation, less that on the test set (FedMorph, Section 5.4).
    """
    evaluated, trained = [], []
    for line in lines:
        if line.get("train_accuracy") is not None:
            trained.append(line["train_accuracy"])
        if "evaluation" not in line:
            continue
        figures, derived = line["evaluation"], {}
        if trained and figures.get("global_accuracy") is not None:
            derived["generalization_gap"] = _short(sum(trained) / len(trained) - figures["global_accuracy"])
        averaged = figures.get("networks", {}).get("averaged", {}).get("accuracy")
        evaluated.append({**line, "evaluation": {**figures, **derived, "averaged_accuracy": averaged}})
        trained = []
    return evaluated


def _few(evaluated: Sequence[Mapping[str, Any]], best: int | None) -> list[Mapping[str, Any]]:
    """Return evenly spaced rounds of those that were evaluated, with the best and the last one."""
    step = -(-len(evaluated) // _MOST_POINTS) or 1
    last = len(evaluated) - 1
    return [line for n, line in enumerate(evaluated) if (last - n) % step == 0 or line["round"] == best]


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")


def _submodels(summary: Mapping[str, Any]) -> dict[str, tuple[int, float | None]]:
    levels, first = summary["levels"], summary["metrics"][0]["name"]
    measured = summary["final"].get("submodels", {})
    return {
        name: (levels[name]["parameters"], _short(values.get(first)))
        for name, values in measured.items()
        if name in levels
    }


def _figures(figures: Mapping[str, Any], derived: Mapping[int, Mapping[str, Any]]) -> dict[str, int | float | None]:
    """Return the figures of a round, with those that are derived and have a value."""
    own = {name: value for name, value in figures.items() if name not in _BESIDE}
    return own | {name: value for name, value in derived.get(figures["round"], {}).items() if value is not None}
