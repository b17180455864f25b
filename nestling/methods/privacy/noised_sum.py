"""The noised sum of clipped changes: what the server learns of the clients of a round, and nothing else.

McMahan, Ramage, Talwar, Zhang, Learning Differentially Private Recurrent Language Models, ICLR 2018, Algorithm 1 (the
estimator with a fixed denominator), per coordinate over slices: a client's change is clipped over all coordinates that
it holds, so the sum moves by at most the clip, whatever the slice. Noise is added to the sum of every coordinate, and
the division comes after it. A mean over the clients that happen to hold a coordinate would move more: its denominator
depends on who takes part, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from nestling.cut import Plan
from nestling.cut.extract import cuts
from nestling.methods.context import Participant, RoundContext, Setup
from nestling.methods.messages import Update
from nestling.methods.parts.holders import accepted, shared_names, shared_values
from nestling.seeds import torch_stream


class NoisedSum:
    """The clipped changes of a round, summed up and noised.

    Parameters
    ----------
    round
        The round.
    clip
        The largest norm of a client's change.
    noise
        The standard deviation of the noise on every coordinate of the sum, over the clip.
    real_counts
        Whether each sum is divided by the number of its holders; if not, by their expected number.
    record
        What the round's line says.
    """

    def __init__(
        self, round: RoundContext, clip: float, noise: float, *, real_counts: bool, record: Mapping[str, Any]
    ) -> None:
        setup = round.setup
        self._round, self._clip, self._noise, self._record = round, clip, noise, record
        self._whole = cuts(setup.cut_axes, Plan())
        # what is not trained (buffers) keeps its value
        self._names = [name for name in shared_names(setup) if name in setup.parameters]
        self._sums = {name: self._whole[name].zeros(round.before[name]) for name in self._names}
        self._real = real_counts
        self._counts = {name: self._whole[name].blank(torch.device("cpu")) for name in self._names}
        if not real_counts:
            self._expect()
        self.clients = 0
        self.within = 0.0  # clients within the clip, each counted as 1/2, and as −1/2 those that are not

    def _expect(self) -> None:
        """Set the denominators to the expected holders of every coordinate in this round, which are public."""
        setup = self._round.setup
        assert setup.participation is not None  # the part's `check` requires it
        for level, clients in setup.participation.expected.items():
            slices = cuts(setup.cut_axes, setup.method.plan.plan(self._round, Participant(0, level)))
            for name in self._names:
                if name in slices:
                    slices[name].count(self._counts[name], clients)

    @torch.no_grad()
    def add(self, update: Update, weight: float) -> None:
        """Add the clipped change of a client; its weight is not used."""
        del weight
        setup, before = self._round.setup, self._round.before
        values = shared_values(setup, update, accepted(self._round, update))
        changes = {
            name: (where, new.double() - where.take(before[name]).double())
            for name, (where, new) in values.items()
            if name in self._sums
        }
        norm = math.sqrt(sum(change.square().sum().item() for _, change in changes.values()))
        share = min(1.0, self._clip / norm) if norm else 1.0
        for name, (where, change) in changes.items():
            where.add_to(self._sums[name], change, share)
            if self._real:
                where.count(self._counts[name], 1.0)
        self.clients += 1
        self.within += 0.5 if norm <= self._clip else -0.5

    @torch.no_grad()
    def value(self) -> dict[str, Tensor]:
        """Return the model with the noised mean change added; also if nobody took part, which the noise hides."""
        setup, before = self._round.setup, self._round.before
        merged = {name: before[name].clone() for name in setup.axes.dims if name not in setup.axes.tied}
        stream = noise_stream(setup, "privacy", self._round.number)
        for name in self._names:
            total, count = self._sums[name], self._counts[name]
            noise = torch.randn(total.shape, generator=stream, dtype=torch.float64).mul_(self._noise * self._clip)
            change = torch.where(count > 0, (total + noise) / count, 0.0).view(before[name].shape)
            merged[name] = (before[name].double() + change).to(before[name].dtype)
        return {name: merged[setup.axes.tied.get(name, name)] for name in setup.axes.dims}

    def gathered(self, name: str) -> Tensor:
        """Return the denominator of each coordinate; 0 where it keeps its value."""
        name = self._round.setup.axes.tied.get(name, name)
        whole = self._whole[name]
        if name not in self._counts:
            return torch.zeros(whole.shape, dtype=torch.float64)
        return self._counts[name].expand(whole.view).reshape(whole.shape)

    def submodels(self) -> dict[str, dict[str, Tensor]]:
        """Return nothing: no tensor belongs to a sub-model alone."""
        return {}

    def recorded(self) -> dict[str, Any]:
        """Return what this and all earlier rounds cost."""
        return {"privacy": dict(self._record)}


def noise_stream(setup: Setup, name: str, round: int) -> torch.Generator:
    """Return the stream of a round's noise: that of the seed and, with real devices, of what they do not know."""
    return torch_stream(setup.seed, name, round, *((setup.secret,) if setup.secret else ()))
