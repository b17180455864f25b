"""What clients keep from one round to the next: tensors of their own, and what an upload left out.

A tensor is named as in the model, or ``kind/name``, and has the coordinates of that tensor of the model. As long as a
client always gets the same slice, that slice is all that is kept. Once it gets another, the tensors are kept in the
coordinates of the whole model, so that what belongs to a unit is there again whenever the client trains that unit.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from nestling.axes import AxisMap
from nestling.cut import Plan
from nestling.cut.extract import cuts
from nestling.cut.slices import Cut
from nestling.experiment.client_store import ClientStore

State = dict[str, Tensor]


def recall(
    axes: AxisMap, store: ClientStore, client: int, plan: Plan, untrained: Mapping[str, Tensor] | None = None
) -> State:
    """Return what a client keeps of the slice that it gets now.

    Coordinates that it never trained have the values of the whole model `untrained`, or are zero without one.
    """
    held, before = store.held(client)
    slices = cuts(axes, plan)
    if not held or _same(before, plan) or _without_plan(held, before, slices):
        return held
    whole = _whole(axes, held, before, untrained)
    return {name: slices[_tensor(name)].take(value) for name, value in whole.items() if _tensor(name) in slices}


def remember(
    axes: AxisMap,
    store: ClientStore,
    client: int,
    plan: Plan,
    new: State,
    *,
    round: int,
    untrained: Mapping[str, Tensor] | None = None,
) -> None:
    """Keep what a client has of its slice after a round; what it keeps of other slices stays as it is."""
    held, before = store.held(client)
    slices = cuts(axes, plan)
    if not held or _same(before, plan) or _without_plan(held, before, slices):
        store.put(client, round, new, plan)
        return
    whole = _whole(axes, held, before, untrained)
    for name, value in new.items():
        if name not in whole:
            whole[name] = _blank(axes, name, value, untrained)
        slices[_tensor(name)].put(whole[name], value)
    store.put(client, round, whole, Plan(key="full"))


def _whole(axes: AxisMap, held: State, plan: Plan, untrained: Mapping[str, Tensor] | None) -> State:
    """Return what a client keeps in the coordinates of the whole model, as a copy."""
    slices, whole = cuts(axes, plan), {}
    for name, value in held.items():
        whole[name] = _blank(axes, name, value, untrained)
        slices[_tensor(name)].put(whole[name], value)
    return whole


def _blank(axes: AxisMap, name: str, value: Tensor, untrained: Mapping[str, Tensor] | None) -> Tensor:
    if untrained is not None:
        return untrained[name].detach().clone()
    return torch.zeros(axes.dims[_tensor(name)].shape, dtype=value.dtype)


def _same(one: Plan, other: Plan) -> bool:
    return one.runs == other.runs and one.blocks == other.blocks


def _without_plan(held: State, before: Plan, slices: Mapping[str, Cut]) -> bool:
    """Whether tensors are of the slice of now, but were written by version 0.1, which kept no plan of some."""
    if before != Plan():
        return False
    return all(_tensor(name) in slices and slices[_tensor(name)].shape == value.shape for name, value in held.items())


def _tensor(name: str) -> str:
    return name.rpartition("/")[2]
