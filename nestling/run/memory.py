"""What clients remember from one of their turns to the next, such as what an upload left out.

A memory is named ``kind/tensor`` and has the coordinates of that tensor of the model. As long as a client always gets
the same slice, that slice is all that is kept. Once it gets another, the memory is kept in the coordinates of the whole
model, so that what belongs to a unit is found again whenever the client trains that unit.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nestling.axes import AxisMap
from nestling.cut import Plan
from nestling.cut.extract import cuts
from nestling.run.private import Drawer

State = dict[str, Tensor]


def recall(axes: AxisMap, drawer: Drawer, client: int, plan: Plan) -> State:
    """Return what a client remembers of the slice that it gets now; zero where it never trained."""
    held, before = drawer.held(client)
    if not held or _same(before, plan):
        return held
    how = cuts(axes, plan)
    whole = _whole(axes, held, before)
    return {name: how[_tensor(name)].take(value) for name, value in whole.items() if _tensor(name) in how}


def remember(axes: AxisMap, drawer: Drawer, client: int, plan: Plan, new: State, *, round: int) -> None:
    """Keep what a client remembers of its slice; of other slices it goes on remembering what it did."""
    held, before = drawer.held(client)
    if not held or _same(before, plan):
        drawer.put(client, round, new, plan)
        return
    whole, how = _whole(axes, held, before), cuts(axes, plan)
    for name, value in new.items():
        dims = axes.dims[_tensor(name)]
        whole.setdefault(name, torch.zeros(dims.shape, dtype=value.dtype))
        how[_tensor(name)].put(whole[name], value)
    drawer.put(client, round, whole, Plan(key="full"))


def _whole(axes: AxisMap, held: State, plan: Plan) -> State:
    """A memory in the coordinates of the whole model, as a copy."""
    how, whole = cuts(axes, plan), {}
    for name, value in held.items():
        whole[name] = torch.zeros(axes.dims[_tensor(name)].shape, dtype=value.dtype)
        how[_tensor(name)].put(whole[name], value)
    return whole


def _same(one: Plan, other: Plan) -> bool:
    return one.runs == other.runs and one.blocks == other.blocks


def _tensor(name: str) -> str:
    return name.partition("/")[2]
