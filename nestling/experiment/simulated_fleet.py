"""The fleet of an experiment: its clients' levels and devices, from settings or from a file."""

from __future__ import annotations

from typing import Any

import numpy as np

from nestling.errors import ConfigError
from nestling.experiment.submodel_choice import level_within
from nestling.fleet import (
    Fleet,
    Level,
    LevelsFile,
    Population,
    is_levels_file,
    is_list_of_budgets,
    parse_levels_file,
    parse_list_of_budgets,
    parse_mix,
    population,
    read_levels_file,
)
from nestling.methods import Setup
from nestling.server.cost_meter import CostMeter
from nestling.settings import Experiment, FleetSettings


def simulated_fleet(
    settings: Experiment, setup: Setup, levels_text: str | None = None
) -> tuple[Fleet, Population | None, str]:
    """Return the fleet of an experiment, the devices of its clients, and the content of the file that names levels.

    Parameters
    ----------
    settings, setup
        The experiment. The ratios of its setup are not used, as they follow from the fleet.
    levels_text
        The content of the file that fleet.levels names; None to read the file.
    """
    fleet, clients, seed = settings.fleet, setup.clients, settings.seed
    path, sampling = fleet.levels.strip(), _sampling(fleet)
    if is_levels_file(path):
        file = read_levels_file(path) if levels_text is None else parse_levels_file(path, levels_text)
    elif is_list_of_budgets(path):
        file = parse_list_of_budgets(path)
    else:
        devices = population(clients, fleet.devices, seed) if fleet.devices else None
        mix = parse_mix(path)
        return Fleet(clients, fleet.per_round, mix, fleet.assign, seed, **sampling), devices, ""
    if fleet.devices:
        raise ConfigError(f"fleet.levels={path} says what clients can carry: leave out fleet.devices={fleet.devices}")
    if fleet.assign != "fixed":
        raise ConfigError(f"fleet.levels={path} gives every client its level: use fleet.assign=fixed")
    if fleet.deadline and not file.devices:
        raise ConfigError(
            f"fleet.deadline needs devices, and {path} has none: give its rows memory, speed, down and up"
        )
    numbers = file.rows_of(clients, seed)
    if file.devices:
        mix = parse_mix([level.name for level in file.levels])
        kinds = tuple((row.device, 1 / len(file.rows)) for row in file.rows if row.device is not None)
        devices = Population(clients, kinds, seed, listed=numbers)
        return Fleet(clients, fleet.per_round, mix, seed=seed, **sampling), devices, file.text
    levels = _levels(file, setup)
    by_ratio = {level.ratio: level for level in reversed(levels)}  # of two names of a ratio, the first
    ratios = sorted(by_ratio, reverse=True)
    small = np.min_scalar_type(len(ratios))  # a byte per client: there may be millions
    place_of = np.array([ratios.index(level.ratio) for level in levels], dtype=small)[numbers]
    counts = np.bincount(place_of, minlength=len(ratios))
    mix = tuple((by_ratio[ratios[place]], int(counts[place]) / clients) for place in np.flatnonzero(counts))
    listed = (np.cumsum(counts > 0) - 1).astype(small)[place_of]  # a small share may get no client
    return Fleet(clients, fleet.per_round, mix, seed=seed, listed=listed, **sampling), None, file.text


def _sampling(fleet: FleetSettings) -> dict[str, Any]:
    return {"sampling": fleet.sampling, "over_selection": fleet.over_selection}


def _levels(file: LevelsFile, setup: Setup) -> list[Level]:
    """Return the level of every row; that of a budget is the largest level of the method that meets it."""
    costs = CostMeter(setup)
    return [row.level or level_within(setup, costs, row.budget) for row in file.rows]  # type: ignore[arg-type]
