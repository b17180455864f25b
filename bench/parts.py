"""The parts of the benchmark by name, and how some of them are measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch

from bench.apart import machine
from bench.devices import devices
from bench.figure import Figure, Table
from bench.formats import formats
from bench.groups import groups
from bench.memory import memory
from bench.merges import merges
from bench.morphs import morphs
from bench.populations import populations
from bench.rounds import rounds
from bench.scale import scale
from bench.submodels import submodels
from bench.traces import traces
from bench.trees import trees
from bench.workers import workers
from nestling.errors import ConfigError, nearest

Part = Callable[[bool], Iterator[Figure | Table]]
THREADS = 1  # of every program, unless what is measured says otherwise
PARTS: dict[str, Part] = {
    "merges": merges,
    "memory": memory,
    "traces": traces,
    "sub-models": submodels,
    "populations": populations,
    "scale": scale,
    "trees": trees,
    "devices": devices,
    "workers": workers,
    "groups": groups,
    "formats": formats,
    "morphs": morphs,
    "rounds": rounds,
}


def chosen(names: Sequence[str]) -> dict[str, Part]:
    """Return the parts of some names, or all where none is given.

    >>> list(chosen(["traces"]))
    ['traces']
    >>> chosen(["form"])
    Traceback (most recent call last):
        ...
    nestling.errors.ConfigError: there is no part 'form' of the benchmark; did you mean 'formats'?
    """
    for name in names:
        if name not in PARTS:
            raise ConfigError(f"there is no part {name!r} of the benchmark{nearest(name, PARTS)}")
    return {name: PARTS[name] for name in names or PARTS}


def measure(part: Part, quick: bool = False) -> dict[str, Any]:
    """Measure a part; return its figures and its tables as plain values."""
    before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        entries = list(part(quick))
    finally:
        torch.set_num_threads(before)
    return {
        "figures": [asdict(one) for one in entries if isinstance(one, Figure)],
        "tables": [asdict(one) for one in entries if isinstance(one, Table)],
    }


def report(parts: Mapping[str, Any], quick: bool = False) -> dict[str, Any]:
    """Return what was measured, with what it depends on."""
    return {"machine": {**machine(), "threads": THREADS}, "quick": quick, "parts": dict(parts)}
