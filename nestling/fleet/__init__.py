"""The fleet: which clients take part in a round, the sub-model size of each device, and the duration of a round."""

from nestling.fleet.clock import RoundClock, Timing, round_clock, time_of
from nestling.fleet.devices import DEVICES, Device, Population, online, population
from nestling.fleet.fit import TRAINING, level_for
from nestling.fleet.fleet import ASSIGNMENTS, Fleet
from nestling.fleet.levels import LEVELS, NEFL_FIVE, NEFL_SQUARES, NEFL_THREE, Level, parse_level, parse_levels
from nestling.fleet.levels_file import (
    LevelsFile,
    is_levels_file,
    is_list_of_budgets,
    parse_levels_file,
    parse_list_of_budgets,
    read_levels_file,
)
from nestling.fleet.mix import FEDROLEX_REAL_WORLD, Mix, parse_mix, write_mix
from nestling.fleet.participation import Participation

__all__ = [
    "ASSIGNMENTS",
    "DEVICES",
    "FEDROLEX_REAL_WORLD",
    "LEVELS",
    "NEFL_FIVE",
    "NEFL_SQUARES",
    "NEFL_THREE",
    "TRAINING",
    "Device",
    "Fleet",
    "Level",
    "LevelsFile",
    "Mix",
    "Participation",
    "Population",
    "RoundClock",
    "Timing",
    "is_levels_file",
    "is_list_of_budgets",
    "level_for",
    "online",
    "parse_level",
    "parse_levels",
    "parse_levels_file",
    "parse_list_of_budgets",
    "parse_mix",
    "population",
    "read_levels_file",
    "round_clock",
    "time_of",
    "write_mix",
]
