"""What the sub-models of an experiment cost and score, one entry per size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from nestling.errors import NestlingError
from nestling.report.measures import leading
from nestling.report.read import Level, Run
from nestling.report.runs_by_seed import Experiment, Statistic, statistic

_FULL = "full"  # the level of methods that do not cut the model


@dataclass(frozen=True)
class LevelResult:
    """A size: the levels that have it, what it costs, and its final score by the metric `kind`, over seeds."""

    levels: tuple[str, ...]
    cost: Level
    kind: str
    value: Statistic | None

    @property
    def name(self) -> str:
        """Its level, or its levels if they are of the same size."""
        return self.levels[0] if len(self.levels) == 1 else f"{self.levels[0]} to {self.levels[-1]}"


def level_results(experiment: Experiment) -> list[LevelResult]:
    """Return the sizes of an experiment, the largest first; levels that cost the same are one size.

    All levels of FedAvg are the whole model, for example. Unfinished runs do not record what levels cost; then the
    costs are computed, if the model is one of ours.
    """
    levels = next((run.levels for run in experiment.counted if run.levels), None)
    if levels is None:
        levels = _expected_levels(experiment.runs[0])
    sizes: dict[tuple[float, float | None], list[str]] = {}
    for name, cost in levels.items():
        if cost.parameters:
            sizes.setdefault((cost.parameters, cost.macs), []).append(name)
    results = [_result(experiment, names, levels[names[0]]) for names in sizes.values()]
    return sorted(results, key=lambda result: -result.cost.parameters)


def _result(experiment: Experiment, names: list[str], cost: Level) -> LevelResult:
    metrics = experiment.runs[0].metrics
    first = metrics[0].name if metrics else "accuracy"
    tested = [run.final.submodels.get(names[0], {}) for run in experiment.counted if run.final]
    kind = first if any(first in values for values in tested) else leading(tested[0] if tested else ())
    value = statistic(values[kind] for values in tested if kind in values) if kind else None
    return LevelResult(tuple(names), cost, kind or "", value)


def _expected_levels(run: Run) -> Mapping[str, Level]:
    """Return what the levels of an unfinished run cost; nothing, if its model, data or method is the user's own."""
    tested = tuple(run.final.submodels) if run.final else ()
    return _computed_levels(run.config, tested) if tested else {}


@lru_cache(maxsize=256)
def _computed_levels(config: str, names: tuple[str, ...]) -> Mapping[str, Level]:
    from nestling.experiment.reproductions.expected_cost import IMAGES, level_costs  # noqa: PLC0415
    from nestling.fleet.levels import parse_level  # noqa: PLC0415
    from nestling.settings import Experiment  # noqa: PLC0415

    try:
        experiment = Experiment.from_toml(config)
        foreign = ":" in experiment.method + experiment.model.name + experiment.parts  # a page imports nobody's code
        if foreign or experiment.data.name not in IMAGES:
            return {}
        ratios = {name: 1.0 if name == _FULL else parse_level(name).ratio for name in names}
        costs = level_costs(experiment)  # the largest first; one, if all clients train the same slice
    except NestlingError:
        return {}
    by_size = sorted(set(ratios.values()), reverse=True)
    if len(costs) not in (1, len(by_size)):
        return {}
    return {
        name: Level(ratio, cost.parameters, None, cost.macs)
        for name, ratio in ratios.items()
        for cost in [costs[by_size.index(ratio) if len(costs) > 1 else 0]]
    }
