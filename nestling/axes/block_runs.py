"""Blocks in runs: those that follow each other in a stage of a model."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from nestling.axes.blocks import inside

Runs = list[list[tuple[str, ...]]]  # runs of units, which are the names of the blocks that go together


def nested_pair(blocks: Iterable[str]) -> tuple[str, str] | None:
    """Return two neighbours of which the second block lies inside the first; None if there are none.

    >>> nested_pair(["stages.1", "stages.1.0"]), nested_pair(["stages.1", "stages.10"])
    (('stages.1', 'stages.1.0'), None)
    """
    return next(((outer, inner) for outer, inner in pairwise(blocks) if inside(inner, [outer])), None)


def block_runs(blocks: Iterable[str]) -> Runs:
    """Return blocks in runs of consecutive numbers under one name; blocks with the same number go together.

    A vision transformer's block is ``blocks.3.attention`` and ``blocks.3.mlp``; a gap in the numbers ends a stage.

    >>> block_runs(["a.0.x", "a.0.y", "a.1.x", "a.3.x"])
    [[('a.0.x', 'a.0.y'), ('a.1.x',)], [('a.3.x',)]]
    """
    units: dict[tuple[str, int], list[str]] = {}
    for block in blocks:
        words = block.split(".")
        numbers = [k for k, word in enumerate(words) if word.isdecimal()]
        place = (".".join(words[: numbers[-1]]), int(words[numbers[-1]])) if numbers else (f"{block}.", 0)
        units.setdefault(place, []).append(block)
    runs: Runs = []
    before = ("", -1)
    for place, names in units.items():
        if not runs or place != (before[0], before[1] + 1):
            runs.append([])
        runs[-1].append(tuple(names))
        before = place
    return runs
