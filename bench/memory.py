"""Memory of merges: it must not grow with the number of clients."""

from __future__ import annotations

from collections.abc import Iterator

from bench.apart import apart, most_memory
from bench.figure import Figure
from bench.merges import LEVELS, MODEL, SMALL
from nestling.axes import trace
from nestling.cut import Tally, extract, plan
from nestling.nets import build, example


def memory(quick: bool = False) -> Iterator[Figure]:
    """Peak memory of a merge of 400 clients with random sets against fewer, each in a process of its own."""
    counts = (2, 4) if quick else (10, 100, 400)
    few, *_, some, many = (0, *(apart(merge_and_tell_peak, SMALL if quick else MODEL, count) for count in counts))
    ratio, note = many / some, ""
    if not quick:
        note = f"{many / few:.2f} × 10 clients, which do not fill the room for slices that wait"
    name, unit = f"memory of a merge, {counts[-1]} clients", f"× {counts[-2]} clients"
    yield Figure(name, ratio, unit, "≤ 1.05", ratio <= 1.05, note)


def merge_and_tell_peak(name: str, count: int) -> int:
    """Merge `count` random slices made one at a time, and return the most memory (KiB) that took."""
    model = build(name)
    axes, whole = trace(model, *example(name)), model.state_dict()
    tally = Tally(axes, whole)
    for client in range(count):
        slice_plan = plan(axes, LEVELS[client % len(LEVELS)], "random", seed=client)
        tally.add(extract(axes, slice_plan, whole), slice_plan)
    tally.value()
    return most_memory()
