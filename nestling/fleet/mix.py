"""Mixes: the levels of a fleet and the share of clients at each."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from nestling.fleet.apportion import Part, name_and_share, normalise, parts
from nestling.fleet.levels import Level, check_different, parse_level, split
from nestling.number_checks import decimal

Mix: TypeAlias = tuple[tuple[Level, float], ...]


def parse_mix(
    mix: str | Mapping[str, float] | Sequence[str | float | Level | tuple[str | float | Level, float]],
) -> Mix:
    """Return levels with the shares of clients that have them, which sum to 1.

    Parameters
    ----------
    mix
        HeteroFL's notation, where a number after a letter is its share (``"a1-e9"`` is 10 % and 90 %); shares after
        colons (``"a:0.06,0.3:0.94"``); levels alone, with equal shares (``"a-b-c"``); or the same as a list,
        a list of pairs, or a mapping. Shares may have any sum.

    Examples
    --------
    >>> [(level.name, share) for level, share in parse_mix("a1-e9")]
    [('a', 0.1), ('e', 0.9)]
    >>> parse_mix({"a": 1, "e": 9}) == parse_mix([("a", 0.1), ("e", 0.9)]) == parse_mix("a:10, e:90")
    True
    """
    pairs = parts("a mix of levels", mix, split, _parse_part)
    levels = [parse_level(level) for level, _ in pairs]  # type: ignore[arg-type]  # it raises for other types
    check_different(levels)
    return normalise(levels, [share for _, share in pairs], lambda level: level.name)


def _parse_part(text: str) -> Part:
    letter_share = re.fullmatch(r"\s*([A-Za-z])(\d+(?:\.\d+)?)\s*", text)
    return (letter_share[1], float(letter_share[2])) if letter_share else name_and_share(text)


def write_mix(mix: Mix) -> str:
    """Return the text of a mix, the inverse of `parse_mix`.

    >>> write_mix(parse_mix("a1-e9"))
    'a:0.1,e:0.9'
    """
    return ",".join(f"{level.name}:{decimal(share)}" for level, share in mix)


# FedRolex, Section 4.5: household incomes in the U.S. as a proxy for the capability of devices.
FEDROLEX_REAL_WORLD = parse_mix("a:0.06,b:0.10,c:0.11,d:0.18,e:0.55")
