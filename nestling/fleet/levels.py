"""Levels: the share of every axis that a device keeps, with a name for tables and files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from nestling.errors import FleetError
from nestling.number_checks import decimal, parse_number, real

LEVELS = {"a": 1.0, "b": 1 / 2, "c": 1 / 4, "d": 1 / 8, "e": 1 / 16}  # HeteroFL's computation complexity levels


@dataclass(frozen=True)
class Level:
    """A ratio in (0, 1] and its name: one of a to e, or the ratio itself as a decimal.

    The name determines the ratio, so a level can be read back from its name; and it is a valid part of a file name.

    >>> Level("b", 0.5), Level("0.3", 0.3)
    (Level(name='b', ratio=0.5), Level(name='0.3', ratio=0.3))
    """

    name: str
    ratio: float

    def __post_init__(self) -> None:
        ratio = real(f"the ratio of level {self.name!r}", self.ratio, above=0, most=1)
        names = [*(name for name, known in LEVELS.items() if known == ratio), decimal(ratio)]
        if self.name not in names:
            raise FleetError(
                f"a level of ratio {decimal(ratio)} is called {' or '.join(map(repr, names))}, not {self.name!r}"
            )
        object.__setattr__(self, "ratio", ratio)


def parse_level(value: str | float | Level) -> Level:
    """Return the level of a letter, or of a number or fraction above 0 and at most 1.

    >>> parse_level("c"), parse_level("1/5"), parse_level(0.3).name
    (Level(name='c', ratio=0.25), Level(name='0.2', ratio=0.2), '0.3')
    """
    if isinstance(value, Level):
        return value
    text = value.strip().lower() if isinstance(value, str) else ""
    if text in LEVELS:
        return Level(text, LEVELS[text])
    try:
        ratio = real("a level", parse_number(text) if text else value, above=0, most=1)
    except FleetError:
        raise FleetError(
            f"there is no level {value!r}: use a, b, c, d, e (widths 1, 1/2, 1/4, 1/8, 1/16) "
            "or a number above 0 and at most 1"
        ) from None
    return Level(decimal(ratio), ratio)


def parse_levels(values: str | Sequence[str | float | Level]) -> tuple[Level, ...]:
    """Return different levels, in the same order, from a list of names and numbers or from a text.

    The levels of a text are separated by hyphens, as in the papers, or by commas.

    >>> [level.ratio for level in parse_levels("a-c-e")]
    [1.0, 0.25, 0.0625]
    >>> [level.name for level in parse_levels("a, 0.3")] == [level.name for level in parse_levels(["a", 0.3])]
    True
    """
    if not isinstance(values, str | Sequence):
        raise FleetError(f"levels must be a text such as 'a-b-c' or a list of names and numbers, not {values!r}")
    levels = tuple(parse_level(value) for value in (split(values) if isinstance(values, str) else values))
    if not levels:
        raise FleetError("there must be at least one level, such as 'a' or 0.5")
    check_different(levels)
    return levels


def split(text: str) -> list[str]:
    """Return the parts of a text separated by commas, or by hyphens if there is no comma.

    The hyphen of ``1e-3`` is not a separator.

    >>> split("a-b-1e-3"), split("a, 0.5")
    (['a', 'b', '1e-3'], ['a', '0.5'])
    """
    parts = text.split(",") if "," in text else re.split(r"(?<![\d.][eE])-", text)
    return [part.strip() for part in parts]


def check_different(levels: Sequence[Level]) -> None:
    """Raise `FleetError` if two levels have the same ratio, whatever their names."""
    seen: dict[float, Level] = {}
    for level in levels:
        if level.ratio in seen:
            raise FleetError(
                f"the levels {seen[level.ratio].name!r} and {level.name!r} are the same ratio, "
                f"{decimal(level.ratio)}: name each level once"
            )
        seen[level.ratio] = level


# NeFL's γ (ratios of *parameters*, smallest first): Tables 1, 2, 4–6; Table 9; Table 3.
NEFL_FIVE = parse_levels("0.2-0.4-0.6-0.8-1")
NEFL_SQUARES = parse_levels("0.04-0.16-0.36-0.64-1")
NEFL_THREE = parse_levels("0.5-0.75-1")
