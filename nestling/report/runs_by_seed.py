"""Experiments: groups of runs that differ only in their seed, and statistics over them."""

from __future__ import annotations

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from nestling.report.read import Run
from nestling.settings.overrides import flattened

# Settings that do not distinguish experiments: but for the seed, numbers do not depend on them.
_BESIDE = ("seed", "workers", "engine", "address", "checkpoint_every", "data.dir")


@dataclass(frozen=True)
class Statistic:
    """The mean over seeds and the sample standard deviation, which is None for a single seed."""

    mean: float
    deviation: float | None
    values: tuple[float, ...]


@dataclass(frozen=True)
class Experiment:
    """Runs that differ only in their seed. The number determines the colour of the experiment."""

    number: int
    label: str
    runs: tuple[Run, ...]

    @property
    def counted(self) -> tuple[Run, ...]:
        """The runs that statistics include: the finished ones, or all if none is finished.

        An unfinished run among finished ones would bias every mean.
        """
        return tuple(run for run in self.runs if run.finished) or self.runs

    @property
    def finished(self) -> bool:
        """Whether any of its runs is finished."""
        return any(run.finished for run in self.runs)

    @property
    def leading(self) -> str | None:
        """The measure it is judged by."""
        return next((run.leading for run in self.counted if run.leading), None)

    def over(self, value: Callable[[Run], float | None]) -> Statistic | None:
        """Return the statistic of `value` over the counted runs that have one."""
        return statistic(number for run in self.counted if (number := value(run)) is not None)

    def final(self, name: str) -> Statistic | None:
        """Return the statistic of a measure after the last round."""
        return self.over(lambda run: run.final.values.get(name) if run.final else None)


def statistic(values: Iterable[float]) -> Statistic | None:
    """Return mean and sample deviation of `values`, or None if there are none.

    >>> statistic([1, 3, 2])
    Statistic(mean=2.0, deviation=1.0, values=(1, 3, 2))
    """
    values = tuple(values)
    if not values:
        return None
    mean = math.fsum(values) / len(values)
    return Statistic(mean, statistics.stdev(values) if len(values) > 1 else None, values)


def experiments(runs: Sequence[Run]) -> list[Experiment]:
    """Group runs by name and configuration apart from the seed, in the order of their first run.

    The labels of experiments of the same name show the settings in which they differ. A repeated run with the same seed
    is not a second sample: it begins another experiment, ``name #2``.
    """
    groups: dict[tuple[str, str, int], list[Run]] = defaultdict(list)
    for run in runs:
        settings = _identity(run)
        copy = 0
        while any(run.seed == other.seed for other in groups.get((run.name, settings, copy), ())):
            copy += 1
        groups[run.name, settings, copy].append(run)
    labels = _labels([(name, settings, copy, group[0]) for (name, settings, copy), group in groups.items()])
    return [
        Experiment(number, label, tuple(sorted(group, key=lambda run: run.seed)))
        for number, (label, group) in enumerate(zip(labels, groups.values(), strict=True))
    ]


def _identity(run: Run) -> str:
    kept = {key: value for key, value in flattened(run.settings).items() if key not in _BESIDE}
    return json.dumps(kept, sort_keys=True, default=str)


def _labels(groups: Sequence[tuple[str, str, int, Run]]) -> list[str]:
    """Return a unique label for every group: its name, the settings that distinguish it, and its copy."""
    labels: list[str] = []
    for name, _, copy, run in groups:
        rivals = {settings: flattened(other.settings) for called, settings, _, other in groups if called == name}
        own = flattened(run.settings)
        keys = sorted({key for flat in rivals.values() for key in flat} - set(_BESIDE))
        apart = [key for key in keys if any(flat.get(key) != own.get(key) for flat in rivals.values())]
        shown = ", ".join(f"{key}={own.get(key, '–')}" for key in apart[:3]) + (", …" if len(apart) > 3 else "")
        label = (name + (f" ({shown})" if shown else "") + (f" #{copy + 1}" if copy else "")) or "unnamed"
        number, unique = 2, label
        while unique in labels:
            number, unique = number + 1, f"{label} #{number}"
        labels.append(unique)
    return labels
