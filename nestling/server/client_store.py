"""`ClientStore`: what clients keep from one round to the next: private tensors, and what an upload left out.

A tensor is named as in the model, or ``kind/name``, and has the coordinates of that tensor of the model. As long as a
client always gets the same slice, only that slice is stored. Once it gets another one, the tensors are stored in the
coordinates of the whole model, so that the values of a unit are found again whenever the client trains that unit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from nestling.axes import AxisMap
from nestling.cut import Plan
from nestling.cut.extract import State, cuts
from nestling.cut.slices import Cut
from nestling.methods.context import Setup
from nestling.methods.messages import Update
from nestling.server.client_files import CLIENT_FOLDERS, ClientFiles


@dataclass(frozen=True, eq=False)
class ClientStore:
    """What all clients keep.

    Attributes
    ----------
    private
        Tensors of the model that a client keeps to itself.
    kept
        What parts of the method and uploads keep: ``kind/tensor`` → value.
    """

    private: ClientFiles
    kept: ClientFiles

    @classmethod
    def start(cls, folder: Path | None) -> ClientStore:
        """Return an empty store, in a run directory or in memory."""
        return cls(*(ClientFiles(None if folder is None else folder / name) for name in CLIENT_FOLDERS))

    def get(self, setup: Setup, client: int, plan: Plan, model: State) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return what a client keeps, cut to the slice that it gets now: its private tensors, and its client state.

        Coordinates that it never trained have the values of the global `model` in private tensors, and are zero else.
        """
        return _get(setup.cut_axes, self.private, client, plan, model), _get(setup.cut_axes, self.kept, client, plan)

    def put(self, setup: Setup, update: Update, round: int, model: State) -> None:
        """Store what a client keeps of its slice after a round; what it keeps of other slices does not change."""
        private = {name: update.state[name] for name in sorted(setup.private & update.state.keys())}
        client = update.who[0].client  # clients that keep something come one by one
        if private:
            _put(setup.cut_axes, self.private, client, update.plan, private, round=round, model=model)
        if update.client_state:
            _put(setup.cut_axes, self.kept, client, update.plan, update.client_state, round=round)

    def copy(self) -> ClientStore:
        """Return a store with the same content, which can be changed without changing this one."""
        return ClientStore(self.private.copy(), self.kept.copy())

    def by_folder(self) -> dict[str, ClientFiles]:
        """Return the files by the name of their folder in a run directory."""
        return dict(zip(CLIENT_FOLDERS, (self.private, self.kept), strict=True))


def _get(axes: AxisMap, files: ClientFiles, client: int, plan: Plan, model: State | None = None) -> dict[str, Tensor]:
    held, before = files.get(client)
    slices = cuts(axes, plan)
    if not held or _same(before, plan) or _without_plan(held, before, slices):
        return held
    whole = _whole(axes, held, before, model)
    return {name: slices[_tensor(name)].take(value) for name, value in whole.items() if _tensor(name) in slices}


def _put(
    axes: AxisMap,
    files: ClientFiles,
    client: int,
    plan: Plan,
    new: dict[str, Tensor],
    *,
    round: int,
    model: State | None = None,
) -> None:
    held, before = files.get(client)
    slices = cuts(axes, plan)
    if not held or _same(before, plan) or _without_plan(held, before, slices):
        files.put(client, round, new, plan)
        return
    whole = _whole(axes, held, before, model)
    for name, value in new.items():
        if name not in whole:
            whole[name] = _initial(axes, name, value, model)
        slices[_tensor(name)].put(whole[name], value)
    files.put(client, round, whole, Plan(key="full"))


def _whole(axes: AxisMap, held: dict[str, Tensor], plan: Plan, model: State | None) -> dict[str, Tensor]:
    """Return what a client keeps in the coordinates of the whole model, as a copy."""
    slices, whole = cuts(axes, plan), {}
    for name, value in held.items():
        whole[name] = _initial(axes, name, value, model)
        slices[_tensor(name)].put(whole[name], value)
    return whole


def _initial(axes: AxisMap, name: str, value: Tensor, model: State | None) -> Tensor:
    if model is not None:
        return model[name].detach().clone()
    return torch.zeros(axes.dims[_tensor(name)].shape, dtype=value.dtype)


def _same(one: Plan, other: Plan) -> bool:
    return one.runs == other.runs and one.blocks == other.blocks


def _without_plan(held: dict[str, Tensor], before: Plan, slices: Mapping[str, Cut]) -> bool:
    """Return whether tensors are of the current slice, but were written without a plan, by version 0.1."""
    if before != Plan():
        return False
    return all(_tensor(name) in slices and slices[_tensor(name)].shape == value.shape for name, value in held.items())


def _tensor(name: str) -> str:
    return name.rpartition("/")[2]
