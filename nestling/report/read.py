"""Read and validate run directories.

A run directory holds ``config.toml``, ``metrics.jsonl`` (an object per round; counters are cumulative) and, once the
run has ended, ``summary.json``. A run without a summary is unfinished; its values are taken from the rounds so far.
"""

from __future__ import annotations

import json
import math
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from nestling.errors import ConfigError, ReportError, nearest
from nestling.report.measures import Metric, Metrics, direction, leading
from nestling.settings import with_new_names

CONFIG, METRICS, SUMMARY = "config.toml", "metrics.jsonl", "summary.json"

_T = TypeVar("_T")
_Whole = Annotated[int, msgspec.Meta(ge=0)]
_Amount = Annotated[float, msgspec.Meta(ge=0)]
_Measured = dict[str, float | dict[str, dict[str, float | None]] | None]


@dataclass(frozen=True)
class Evaluation:
    """The measures after a round: of the global model, and of every sub-model by its level."""

    round: int
    values: Mapping[str, float]
    submodels: Mapping[str, Mapping[str, float]]


class Level(msgspec.Struct, frozen=True):
    """The cost of a sub-model."""

    ratio: float
    parameters: _Whole
    bytes: _Amount | None = None
    macs: _Amount | None = None


class Round(msgspec.Struct, frozen=True):
    """A line of ``metrics.jsonl``; bytes, MACs and seconds are counted from the start of the run."""

    round: _Whole
    bytes_down: _Amount
    bytes_up: _Amount
    client_macs: _Amount
    clients: _Whole = 0
    dropped: _Whole = 0
    lr: float | None = None
    train_loss: float | None = None
    train_accuracy: float | None = None
    simulated_seconds: _Amount | None = None
    levels: dict[str, _Whole] = {}
    evaluation: _Measured | None = None

    @property
    def bytes(self) -> float:
        """Bytes sent so far, both ways."""
        return self.bytes_down + self.bytes_up

    @property
    def measured(self) -> Evaluation | None:
        """The evaluation after this round, if there was one."""
        return _evaluation(self.evaluation, self.round) if self.evaluation else None


class _Summary(msgspec.Struct, frozen=True):
    """The file ``summary.json``."""

    method: str
    name: str
    model: str
    dataset: str
    rounds: _Whole
    bytes_down: _Amount
    bytes_up: _Amount
    client_macs: _Amount
    seed: int = 0
    partition: str | None = None
    rounds_done: _Whole | None = None
    final: _Measured | None = None
    best: _Measured | None = None
    simulated_seconds: _Amount | None = None
    seconds: _Amount | None = None
    command: str = ""
    levels: dict[str, Level] = {}
    coverage: dict[str, list[_Amount]] = {}
    local: dict[str, float | None] = {}
    panels: dict[str, Any] = {}
    metrics: tuple[Metric, ...] = ()


@dataclass(frozen=True)
class Run:
    """One run: its identity, its history and its results."""

    directory: Path
    config: str  # verbatim
    settings: Mapping[str, Any]  # the same, parsed
    name: str
    method: str
    model: str
    dataset: str
    partition: str
    seed: int
    rounds: int  # as configured
    rounds_done: int
    finished: bool
    history: tuple[Round, ...]
    final: Evaluation | None
    best: Evaluation | None
    bytes: float  # both ways
    client_macs: float
    simulated_seconds: float | None
    seconds: float | None
    command: str
    levels: Mapping[str, Level] = field(default_factory=dict)
    coverage: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    local: Mapping[str, float] = field(default_factory=dict)
    panels: Mapping[str, Any] = field(default_factory=dict)
    metrics: tuple[Metric, ...] = ()

    @property
    def leading(self) -> str | None:
        """The measure this run is judged by: the first metric of its task."""
        return leading(self.final.values, self.metrics) if self.final else None


def read(directory: str | os.PathLike[str]) -> Run:
    r"""Return the run in `directory`.

    Every file is validated; a `ReportError` names the file and the line. A last line that is still being written is
    ignored. A number that is not finite (a loss that diverged) counts as missing. If a round occurs again, the run was
    resumed before it, and the earlier lines from that round on are dropped.

    >>> import tempfile, pathlib
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = pathlib.Path(folder, "config.toml").write_text('name = "small"\nmethod = "fedavg"\nrounds = 9')
    ...     line = '{"round": 1, "bytes_down": 8, "bytes_up": 8, "client_macs": 99}'
    ...     _ = pathlib.Path(folder, "metrics.jsonl").write_text(line)
    ...     run = read(folder)
    >>> run.name, run.finished, run.rounds_done, run.bytes
    ('small', False, 1, 16.0)
    """
    folder = Path(directory)
    if not folder.is_dir():
        raise ReportError(no_directory(folder))
    config = _text(folder / CONFIG)
    try:
        settings = with_new_names(tomllib.loads(config))
    except (tomllib.TOMLDecodeError, RecursionError) as problem:
        raise ReportError(f"{folder / CONFIG} is not TOML: {problem}") from None
    except ConfigError as problem:
        raise ReportError(f"{folder / CONFIG}: {problem}") from None
    ended = (folder / SUMMARY).exists()
    history = _history(folder / METRICS, ended)
    if ended:
        summary = _decode(_text(folder / SUMMARY), _Summary, str(folder / SUMMARY))
    else:
        summary = _summary_so_far(folder, settings, history)
    rounds_done = summary.rounds if summary.rounds_done is None else summary.rounds_done
    final, best = _final_and_best(history, summary.metrics)
    return Run(
        directory=folder,
        config=config,
        settings=settings,
        name=summary.name,
        method=summary.method,
        model=summary.model,
        dataset=summary.dataset,
        partition=summary.partition or "",
        seed=summary.seed,
        rounds=summary.rounds,
        rounds_done=rounds_done,
        finished=ended and rounds_done >= summary.rounds,
        history=history,
        final=_evaluation(summary.final, rounds_done) or final,
        best=_evaluation(summary.best, rounds_done) or best,
        bytes=summary.bytes_down + summary.bytes_up,
        client_macs=summary.client_macs,
        simulated_seconds=summary.simulated_seconds,
        seconds=summary.seconds,
        command=summary.command,
        levels=summary.levels,
        coverage={axis: tuple(counts) for axis, counts in summary.coverage.items() if counts},
        local={client: value for client, value in summary.local.items() if value is not None},
        panels=summary.panels,
        metrics=summary.metrics,
    )


def no_directory(path: Path) -> str:
    """Return the error message for a `path` that is no directory, with similar names beside it."""
    if path.exists():
        return f"{path} is a file: name the run directory that holds it"
    folder = path.parent
    beside = sorted(child.name for child in folder.iterdir() if child.is_dir()) if folder.is_dir() else []
    return f"there is no directory {path}" + (nearest(path.name, beside) if beside else "")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ReportError(f"{path.parent} is not a run directory: it holds no {path.name}") from None
    except UnicodeDecodeError as problem:
        raise ReportError(f"{path} is not UTF-8 text: byte {problem.start} is wrong") from None
    except OSError as problem:
        raise ReportError(f"{path} cannot be read: {problem.strerror}") from None


def _history(path: Path, ended: bool) -> tuple[Round, ...]:
    rounds: list[Round] = []
    lines = _text(path).split("\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            entry = _decode(line, Round, f"{path}, line {number}")
        except ReportError:
            if number == len(lines) and not ended:  # no end of line: it is being written, or was truncated
                break
            raise
        while rounds and rounds[-1].round >= entry.round:
            rounds.pop()
        rounds.append(entry)
    return tuple(rounds)


def _decode(text: str, kind: type[_T], where: str) -> _T:
    try:
        return msgspec.convert(json.loads(text, parse_constant=lambda _: None, parse_float=_finite), kind)
    except msgspec.ValidationError as problem:
        message = re.sub(r" - at `\$\.?(.*?)`$", r" in '\1'", str(problem))
        raise ReportError(f"{where}: {message[0].lower()}{message[1:]}") from None
    except json.JSONDecodeError as problem:
        line = f" (line {problem.lineno})" if "\n" in text else ""
        raise ReportError(f"{where}: this is not JSON{line}: {problem.msg}, at column {problem.colno}") from None
    except (ValueError, RecursionError) as problem:  # numbers with thousands of digits, too many brackets
        raise ReportError(f"{where}: this cannot be read: {problem}") from None


def _finite(digits: str) -> float | None:
    value = float(digits)
    return value if math.isfinite(value) else None


def _evaluation(measures: _Measured | None, rounds_done: int) -> Evaluation | None:
    if measures is None:
        return None
    values = {
        name: float(value) for name, value in measures.items() if isinstance(value, int | float) and name != "round"
    }
    levels = measures.get("submodels")
    submodels = {
        level: {name: value for name, value in values_of_level.items() if value is not None}
        for level, values_of_level in (levels if isinstance(levels, dict) else {}).items()
    }
    number = measures.get("round")
    return Evaluation(int(number) if isinstance(number, int | float) else rounds_done, values, submodels)


def _summary_so_far(folder: Path, settings: Mapping[str, Any], history: tuple[Round, ...]) -> _Summary:
    """Return the summary of an unfinished run, from its settings and its rounds."""
    last = history[-1] if history else Round(0, 0, 0, 0)
    data = settings.get("data")
    method, dataset = _named(settings, "method"), _named(settings, "data")
    return _Summary(
        name=_named(settings, "name") or "-".join(filter(None, (method, dataset))) or folder.resolve().name,
        method=method,
        model=_named(settings, "model"),
        dataset=dataset,
        partition=_named(data, "partition") if isinstance(data, Mapping) else "",
        seed=_number(settings, "seed", folder),
        rounds=max(_number(settings, "rounds", folder), last.round),
        rounds_done=last.round,
        bytes_down=last.bytes_down,
        bytes_up=last.bytes_up,
        client_macs=last.client_macs,
        simulated_seconds=last.simulated_seconds,
    )


def _named(settings: Mapping[str, Any], key: str) -> str:
    """Return the text under `key`, or the text under ``name`` if `key` is a table."""
    value = settings.get(key, "")
    if isinstance(value, Mapping):
        value = value.get("name", "")
    return value if isinstance(value, str) else ""


def _number(settings: Mapping[str, Any], key: str, folder: Path) -> int:
    value = settings.get(key, 0)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ReportError(f"{folder / CONFIG}: {key!r} must be a whole number, not {value!r}")
    return value


def _final_and_best(history: tuple[Round, ...], metrics: Metrics = ()) -> tuple[Evaluation | None, Evaluation | None]:
    """Return the last evaluation, and the first one with the best leading measure."""
    evaluations = [measured for entry in history if (measured := entry.measured)]
    if not evaluations:
        return None, None
    name = leading(evaluations[-1].values, metrics)
    if name is None:
        return evaluations[-1], None
    judged = [(evaluation, evaluation.values[name]) for evaluation in evaluations if name in evaluation.values]
    return evaluations[-1], max(judged, key=lambda pair: direction(name, pair[1], metrics) * pair[1])[0]
