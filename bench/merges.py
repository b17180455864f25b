"""Merging and cutting against copying the same tensors."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from bench.figure import Figure
from bench.timing import side_by_side
from nestling.axes import AxisMap, trace
from nestling.cut import Plan, Tally, extract, plan
from nestling.nets import build, example

LEVELS = (1.0, 0.5, 0.25, 0.125, 0.0625)
MODEL = "resnet18"  # 11 million parameters
SMALL = "cnn"

Fleet = list[tuple[dict[str, Tensor], Plan]]


def merges(quick: bool = False) -> Iterator[Figure]:
    """Merging mixed-level clients against copying the same tensors into memory that is there already; and cutting."""
    model_name = SMALL if quick else MODEL
    model = build(model_name)
    axes, whole = trace(model, *example(model_name)), model.state_dict()
    tally = Tally(axes, whole)
    for pick, bound in (("prefix", 0.9), ("rolling", 0.9), ("random", 0.6)):
        for count in (10,) if quick else (10, 100):
            fleet = _fleet(axes, whole, pick, count)
            room = [{name: torch.empty_like(x) for name, x in state.items()} for state in _distinct(fleet)]
            places = {id(state): place for state, place in zip(_distinct(fleet), room, strict=True)}

            def copy(fleet: Fleet = fleet, places: dict[int, dict[str, Tensor]] = places) -> None:
                for state, _ in fleet:
                    for name, place in places[id(state)].items():
                        place.copy_(state[name])

            def merge(trusted: bool, fleet: Fleet = fleet) -> float:
                tally.restart(whole)
                start = time.perf_counter()
                for state, slice_plan in fleet:
                    tally.add(state, slice_plan, trusted=trusted)
                return time.perf_counter() - start

            repeats = 1 if quick else 9 if count == 10 else 5
            copied, merged, checked, value = _merge_times(copy, merge, tally, repeats)
            ratio = copied / merged
            yield Figure(
                f"merge of {count} clients, {pick}",
                ratio,
                "× copy_",
                f"≥ {bound}",
                ratio >= bound,
                f"{copied / checked:.2f} with the search for NaN and ∞; value() takes {value / copied:.2f} of the copy",
            )
    half = plan(axes, 0.5)
    small = extract(axes, half, whole)
    cut, cloned = side_by_side(
        lambda: extract(axes, half, whole), lambda: [x.clone() for x in small.values()], repeats=1 if quick else 15
    )
    yield Figure("extract of a half-width model", cloned / cut, "× clone", note="each kept value is copied once")


def _fleet(axes: AxisMap, whole: dict[str, Tensor], pick: str, count: int) -> Fleet:
    """`count` clients, level by level in turn: two states per level, shared, since only their bytes matter."""
    states: dict[tuple[float, int], dict[str, Tensor]] = {}
    fleet = []
    for client in range(count):
        width = LEVELS[client % len(LEVELS)]
        slice_plan = plan(axes, width, pick, round=37, seed=client)
        key = width, client // len(LEVELS) % 2
        if key not in states:
            states[key] = extract(axes, slice_plan, whole)
        fleet.append((states[key], slice_plan))
    return fleet


def _distinct(fleet: Fleet) -> list[dict[str, Tensor]]:
    return list({id(state): state for state, _ in fleet}.values())


def _merge_times(
    copy: Callable[[], None], merge: Callable[[bool], float], tally: Tally, repeats: int
) -> tuple[float, float, float, float]:
    merge(True)
    copies, merges, checks, values = [], [], [], []
    for _ in range(repeats):
        copies += side_by_side(copy, repeats=1)
        merges.append(merge(True))
        checks.append(merge(False))
        start = time.perf_counter()
        tally.value()
        values.append(time.perf_counter() - start)
    return (
        statistics.median(copies),
        statistics.median(merges),
        statistics.median(checks),
        statistics.median(values),
    )
