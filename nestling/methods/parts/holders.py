"""Who holds what in a round: the values that an update merges, and the number of clients behind every coordinate."""

from __future__ import annotations

import torch
from torch import Tensor

from nestling.cut import Plan
from nestling.cut.accept import accept
from nestling.cut.extract import State, cuts
from nestling.cut.slices import Cut
from nestling.cut.touched import touched_cuts
from nestling.methods.context import RoundContext, Setup
from nestling.methods.messages import Update

LEAST = 3  # holders of a coordinate: of two values that differ, nothing tells which one is wrong


def shared_names(setup: Setup) -> list[str]:
    """Return the names of the tensors that all clients merge; of tied ones, the first."""
    apart = setup.stay | setup.per_submodel | setup.axes.tied.keys()
    return [name for name in setup.axes.dims if name not in apart]


def accepted(round: RoundContext, update: Update) -> State:
    """Return the tensors of an update that merge; raise a `StateError` unless they fit its plan and are finite."""
    setup = round.setup
    slices = {name: cut for name, cut in cuts(setup.cut_axes, update.plan).items() if name not in setup.stay}
    state = {name: tensor for name, tensor in update.state.items() if name not in setup.stay}
    accept(setup.cut_axes, round.before, state, slices, trusted=False)
    return state


def merging_cuts(setup: Setup, update: Update) -> dict[str, tuple[Cut | None, Cut]]:
    """Return, for the shared tensors of an update, what merges: a cut of the slice (None for all), and of the model.

    That is the whole slice, or the rows of the classes that the client holds (a masked loss).
    """
    axes, tied = setup.cut_axes, setup.axes.tied
    slices = {tied.get(name, name): cut for name, cut in cuts(axes, update.plan).items()}
    names = [name for name in shared_names(setup) if name in slices]
    parts = {} if update.rows is None else touched_cuts(axes, update.plan, update.rows, names)
    return {name: parts.get(name, (None, slices[name])) for name in names}


def shared_values(setup: Setup, update: Update, state: State) -> dict[str, tuple[Cut, Tensor]]:
    """Return where the shared tensors of an update merge into the model, and their values there."""
    values = {setup.axes.tied.get(name, name): tensor for name, tensor in state.items()}
    return {
        name: (where, values[name] if inside is None else inside.take(values[name]))
        for name, (inside, where) in merging_cuts(setup, update).items()
    }


class Holders:
    """Counts the clients that hold each coordinate of the shared tensors.

    Parameters
    ----------
    setup
        The experiment.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup, self._tied = setup, setup.axes.tied
        self._whole = cuts(setup.cut_axes, Plan())
        self._counts = {name: self._whole[name].blank(torch.device("cpu")) for name in shared_names(setup)}

    def add(self, update: Update) -> None:
        """Count the client of an update."""
        for name, (_, where) in merging_cuts(self._setup, update).items():
            where.count(self._counts[name], 1.0)

    def rows(self, name: str) -> Tensor:
        """Return the holders of every row of `Cut.width` values of a tensor: (rows,), float64."""
        return self._counts[name].flatten()

    def count(self, name: str) -> Tensor:
        """Return the number of holders of every coordinate of a tensor, in its shape; 0 if it does not merge."""
        name = self._tied.get(name, name)
        whole = self._whole[name]
        if name not in self._counts:
            return torch.zeros(whole.shape, dtype=torch.float64)
        return self._counts[name].expand(whole.view).reshape(whole.shape)

    def gathered(self, name: str) -> Tensor:
        """Return the number of holders of every coordinate, as `count`; 0 where they are fewer than `LEAST`."""
        counts = self.count(name)
        return torch.where(counts >= LEAST, counts, 0.0)

    def too_few(self) -> int:
        """Return the number of coordinates that some clients hold, but fewer than `LEAST`."""
        few = {name: (counts > 0) & (counts < LEAST) for name, counts in self._counts.items()}
        return sum(int(rows.sum()) * self._whole[name].width for name, rows in few.items())

    def only_here(self, other: Holders) -> int:
        """Return the number of coordinates that some clients hold here, and none of `other`."""
        only = {name: (counts > 0) & (other._counts[name] == 0) for name, counts in self._counts.items()}
        return sum(int(rows.sum()) * self._whole[name].width for name, rows in only.items())
