"""A grid of experiments: every combination of the values that settings are given, each with several seeds."""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nestling.errors import ConfigError, NestlingError, first_line
from nestling.experiment.changes import HARMLESS
from nestling.experiment.record import format_value, title
from nestling.settings import Experiment, as_value

MAX_RUNS = 1000  # more are most likely a mistake, and would take months

_LONGEST_NAME = 120  # bytes of a folder's name: file systems take 255
_BRACKETS = {"[": "]", "{": "}"}


@dataclass(frozen=True)
class GridRun:
    """One run of a grid: its directory, its experiment, and the values of the settings that the grid varies."""

    folder: Path
    experiment: Experiment
    varied: Mapping[str, str]

    @property
    def label(self) -> str:
        """The varied settings as on the command line."""
        return _label(self.varied)


def split_values(text: str) -> list[str]:
    """Return the values of a comma-separated list; commas inside brackets and quotes separate nothing.

    >>> split_values("0.01, 0.03,0.1")
    ['0.01', '0.03', '0.1']
    >>> split_values("[8, 16],[16, 32]")
    ['[8, 16]', '[16, 32]']
    >>> split_values("'fedprox:0.01,feddyn:0.1'")
    ["'fedprox:0.01,feddyn:0.1'"]
    """
    values, open_brackets, quote = [""], list[str](), ""
    for sign in text:
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "'\"":
            quote = sign
        elif sign in _BRACKETS:
            open_brackets.append(_BRACKETS[sign])
        elif open_brackets and sign == open_brackets[-1]:
            open_brackets.pop()
        elif sign == "," and not open_brackets:
            values.append("")
            continue
        values[-1] += sign
    return [value.strip() for value in values]


def grid_runs(base: Experiment, settings: Sequence[str], *, seeds: int = 1, folder: Path) -> list[GridRun]:
    """Return the runs of a grid, the seeds varying fastest, and then the last setting.

    The directory of a run, ``folder/COMBINATION/seed-N``, depends on the values that are varied and on nothing else:
    a grid that gets more values or seeds finds its earlier runs.

    Parameters
    ----------
    base
        The experiment that all runs start from.
    settings
        ``KEY=VALUE`` changes a setting in all runs, ``KEY=VALUE,VALUE,…`` varies it.
    seeds
        The number of seeds, 0, 1, …, of every combination; with 1, the seed of the settings.
    folder
        The folder of all runs.

    Examples
    --------
    >>> runs = grid_runs(Experiment(), ["local.lr=0.1,0.2", "rounds=5"], seeds=2, folder=Path("runs"))
    >>> [run.folder.as_posix() for run in runs][1:3]
    ['runs/local.lr=0.1/seed-1', 'runs/local.lr=0.2/seed-0']
    >>> runs[1].experiment.local.lr, runs[1].experiment.rounds, runs[1].experiment.seed
    (0.1, 5, 1)
    """
    values = _values(settings)
    if seeds > 1 and "seed" in values:
        raise ConfigError(f"seed=… and --seeds {seeds} do not go together: write seed=0,1,2, or --seeds 3 alone")
    _check_size(values, seeds)
    runs: list[GridRun] = []
    owners: dict[str, GridRun] = {}
    for combination in itertools.product(*values.values()):
        chosen = dict(zip(values, combination, strict=True))
        varied = {key: value for key, value in chosen.items() if len(values[key]) > 1}
        for seed in [[f"seed={seed}"] for seed in range(seeds)] if seeds > 1 else [[]]:
            try:
                experiment = base.with_settings([*(f"{key}={value}" for key, value in chosen.items()), *seed])
            except NestlingError as problem:
                if not varied:
                    raise
                raise ConfigError(f"{_label(varied)}: {first_line(problem)}") from None
            run = GridRun(folder / _name(varied, experiment) / f"seed-{experiment.seed}", experiment, varied)
            same = owners.setdefault(experiment.to_toml(), run)
            if same is not run:
                raise ConfigError(f"{same.label!r} and {run.label!r} are the same experiment: give each value once")
            runs.append(run)
    return runs


def _values(settings: Sequence[str]) -> dict[str, list[str]]:
    """Return the values of every setting that is given."""
    values: dict[str, list[str]] = {}
    for setting in settings:
        key, equals, text = (part.strip() for part in setting.partition("="))
        if not equals:
            raise ConfigError(f"{setting!r} is not a setting: write key=value,value,…, such as local.lr=0.1,0.3")
        if key in values:
            raise ConfigError(f"the setting {key} is given twice: write all its values once, as in {key}=…,…")
        values[key] = split_values(text)
        if len(values[key]) > 1 and "" in values[key]:
            raise ConfigError(f"{setting!r} has an empty value: remove a comma, or write '' for an empty text")
        if len(values[key]) > 1 and key in HARMLESS:
            raise ConfigError(
                f"the setting {key} cannot change the results of a run, so it is not varied: give it one value, in "
                "quotes if that holds commas"
            )
    return values


def _check_size(values: Mapping[str, Sequence[str]], seeds: int) -> None:
    factors = [len(choices) for choices in values.values() if len(choices) > 1]
    total = math.prod(factors) * seeds
    if total > MAX_RUNS:
        product = " × ".join([*map(str, factors), *([f"{seeds} seeds"] if seeds > 1 else [])])
        raise ConfigError(
            f"this grid has {total:,} runs ({product}), but a sweep has at most {MAX_RUNS:,}: give fewer values or "
            "fewer seeds"
        )


def _label(varied: Mapping[str, str]) -> str:
    return " ".join(f"{key}={value}" for key, value in varied.items())


def _name(varied: Mapping[str, str], experiment: Experiment) -> str:
    """Return the name of a combination's folder: the same for the same values in any order."""
    pairs = [f"{key}={format_value(as_value(value))}" for key, value in sorted(varied.items()) if key != "seed"]
    if not pairs:
        return title(experiment)
    text = ",".join(pairs)
    name = re.sub(r"[^A-Za-z0-9._=,+-]+", "_", text)
    if name == text and len(name) <= _LONGEST_NAME:
        return name
    return f"{name[:_LONGEST_NAME]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
