"""Levels as papers write them, and as a run counts them.

Papers name levels by their share of model a, and the global model of a mix is its largest level: that of ``b-e`` is b.
A run counts levels from its own global model: there, b is a, and e is d.
"""

from __future__ import annotations

from nestling.fleet.levels import LEVELS

_NAMES = list(LEVELS)


def server_and_levels(mix: str) -> tuple[float, str]:
    """Return the width of the server's model and the levels of a run, for a mix whose largest level comes first.

    >>> server_and_levels("a1-e9"), server_and_levels("b-e")
    ((1.0, 'a1-e9'), (0.5, 'a-d'))
    """
    return LEVELS[mix[0]], _shifted(mix, -_NAMES.index(mix[0]))


def as_papers_write(width: float, levels: str) -> str:
    """Return the mix that `server_and_levels` turns into this width and these levels.

    >>> as_papers_write(0.5, "a-d")
    'b-e'
    """
    return _shifted(levels, list(LEVELS.values()).index(width))


def _shifted(mix: str, by: int) -> str:
    return "".join(_NAMES[_NAMES.index(sign) + by] if sign in LEVELS else sign for sign in mix)
