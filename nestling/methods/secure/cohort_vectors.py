"""The changes of a cohort as vectors of one length: the coordinates that enough of its clients hold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nestling.cut import Plan
from nestling.cut.extract import State, cuts
from nestling.methods.context import RoundContext, Setup
from nestling.methods.messages import Update
from nestling.methods.parts.holders import accepted, merging_cuts, shared_names, shared_values


class CohortVectors:
    """Which coordinates the vectors of a cohort have, in which order.

    Everybody can tell from the plans of the cohort, which the server made. A coordinate that a client does not hold is
    zero in its vector.

    Parameters
    ----------
    round
        The round.
    updates
        The updates of the cohort.
    needed
        How many of its clients must hold a coordinate: with as many, three are left however many may drop out.
    """

    def __init__(self, round: RoundContext, updates: Sequence[Update], needed: int) -> None:
        setup = round.setup
        self._round, whole = round, cuts(setup.cut_axes, Plan())
        counts = {name: whole[name].blank(torch.device("cpu")) for name in shared_names(setup)}
        for update in updates:
            for name, (_, where) in merging_cuts(setup, update).items():
                where.count(counts[name], 1.0)
        self.summed = {name: count >= needed for name, count in counts.items()}
        self.places = {
            name: summed.expand(whole[name].view).reshape(-1).nonzero().squeeze(1)
            for name, summed in self.summed.items()
        }
        slices = cuts(setup.cut_axes, updates[0].plan)
        self.own = {name: slices[name].shape for name in sorted(setup.per_submodel & slices.keys())}
        self._whole = whole

    @property
    def length(self) -> int:
        """The length of the vectors."""
        return sum(map(len, self.places.values())) + sum(map(math.prod, self.own.values()))

    @torch.no_grad()
    def vector(self, update: Update, sent: State, share: float) -> NDArray[np.float64]:
        """Return `share` times the change of a client from the slice that it was `sent`, (length,)."""
        setup, state = self._round.setup, accepted(self._round, update)
        new, old = shared_values(setup, update, state), shared_values(setup, update, sent)
        parts = []
        for name, places in self.places.items():
            changed = torch.zeros(self._whole[name].view, dtype=torch.float64)
            if name in new and len(places):
                where, values = new[name]
                where.add_to(changed, values.double() - old[name][1].double(), share)
            parts.append(changed.view(-1)[places])
        parts += [(state[name].double() - sent[name].double()).mul(share).flatten() for name in self.own]
        return torch.cat(parts).numpy()

    def tensors(self, vector: NDArray[Any]) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
        """Return what a vector says of the shared tensors, at `places`, and of those of the sub-model alone."""
        sizes = [*map(len, self.places.values()), *map(math.prod, self.own.values())]
        parts = torch.from_numpy(vector).split(sizes)
        shared = dict(zip(self.places, parts, strict=False))
        own = zip(self.own.items(), parts[len(self.places) :], strict=True)
        return shared, {name: part.view(shape) for (name, shape), part in own}


def vector_length(setup: Setup, plan: Plan) -> int:
    """Return the number of values that the clients of a slice merge."""
    slices = cuts(setup.cut_axes, plan)
    tied = setup.axes.tied
    present = {tied.get(name, name): cut for name, cut in slices.items()}
    names = {*shared_names(setup), *setup.per_submodel}
    return sum(math.prod(cut.shape) for name, cut in present.items() if name in names)
