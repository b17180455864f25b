"""Krum and multi-Krum: only updates that are close to many others are merged.

Blanchard, El Mhamdi, Guerraoui, Stainer, Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent,
NeurIPS 2017, §4. An update's score is the sum of its squared distances to the n − f − 2 nearest ones, where f of n are
attackers; Krum takes the update with the lowest score. Multi-Krum takes the mean of the best n − f − 2, the most for
which Damaskinos et al., AggregaThor, MLSys 2019, prove that it withstands f attackers.

Departures
----------
- Distances need equal slices, so clients of one slice are judged among themselves, and each group may hold f attackers.
  A group of fewer than 2f + 3 cannot be judged and is left out: the round's line counts its clients as ``unjudged``,
  and coordinates that nobody else holds as ``too_few_holders``.
- What is chosen in the groups is merged coordinate by coordinate, everyone with the same weight.
- Distances are over all tensors that merge, those of one sub-model included, but for counters.

The updates of a round are kept until it ends: memory grows with its clients, by the size of their slices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nestling.cut import Plan
from nestling.cut.accept import averaged
from nestling.cut.extract import State
from nestling.data.federated import ClientData
from nestling.errors import ConfigError, MethodError
from nestling.events import report
from nestling.methods.aggregator import Aggregator, Mean
from nestling.methods.context import RoundContext, Setup
from nestling.methods.messages import Update
from nestling.methods.part import Part
from nestling.methods.parts.holders import Holders, accepted
from nestling.methods.parts.plans_by_client import draws_by_client
from nestling.methods.robust.rule_checks import check_rule


@dataclass(frozen=True)
class Krum(Part):
    """Merge the updates that are closest to others of the same slice.

    Attributes
    ----------
    attackers
        f: how many of the clients of one slice may be attackers.
    multi
        Whether the best n − f − 2 updates of a slice are merged, not the best one alone.
    """

    attackers: int = 1
    multi: bool = False

    def __post_init__(self) -> None:
        if self.attackers < 0:
            raise MethodError(f"krum withstands a number of attackers, 0 or more, not {self.attackers!r}")

    @property
    def label(self) -> str:
        """The name of the rule in messages."""
        return "multi-krum" if self.multi else "krum"

    @property
    def extendable(self) -> bool:
        """Return True: nothing depends on the number of rounds."""
        return True

    def check(self, setup: Setup, public: ClientData | None) -> None:
        """Raise an error if clients do not have equal slices to compare, or too few of them."""
        del public
        check_rule(setup, self.label, sparse=True)
        name, least = setup.method.name, 2 * self.attackers + 3
        if setup.method.overriding("output_mask"):
            raise MethodError(
                f"{self.label} compares whole slices, of which clients of {name} merge only the rows of their own "
                "classes: set options.masked=false"
            )
        if draws_by_client(setup):
            raise MethodError(f"{self.label} compares equal slices, and {name} gives every client one of its own")
        if setup.clients < least:
            raise ConfigError(
                f"{self.label}:{self.attackers} needs at least {least} clients of one slice in a round, and "
                f"fleet.clients is {setup.clients}"
            )

    def aggregator(self, round: RoundContext, mean: Mean) -> Aggregator:
        """Return the merge of a round by this rule."""
        return _Krum(self, round, mean)


class _Krum:
    """The updates of a round by slice; those that are chosen go into the mean."""

    def __init__(self, part: Krum, round: RoundContext, mean: Mean) -> None:
        self._part, self._round, self._mean = part, round, mean
        self._groups: dict[Plan, list[Update]] = {}
        self._judged, self._alone = Holders(round.setup), Holders(round.setup)
        self._unjudged: list[Update] = []
        self.gathered, self.submodels = mean.gathered, mean.submodels

    @property
    def clients(self) -> int:
        """The number of clients whose updates arrived."""
        return sum(map(len, self._groups.values()))

    def add(self, update: Update, weight: float) -> None:
        """Keep an update until the round ends; its weight is not used."""
        del weight
        accepted(self._round, update)  # also if it will not be chosen
        self._groups.setdefault(update.plan, []).append(update)

    def value(self) -> dict[str, Tensor]:
        """Return the mean of the updates that were chosen."""
        attackers, setup = self._part.attackers, self._round.setup
        tied = setup.axes.tied
        for plan, updates in self._groups.items():
            enough = len(updates) >= 2 * attackers + 3
            for update in updates:
                (self._judged if enough else self._alone).add(update)
            if not enough:
                self._unjudged += updates
                report(
                    "update not judged",
                    f"{len(updates)} clients trained the slice {plan.key}, and {self._part.label}:{attackers} needs "
                    f"{2 * attackers + 3} of one slice: their updates are left out",
                    count=len(updates),
                )
                continue
            states = [
                {tied.get(name, name): tensor for name, tensor in update.state.items() if name not in setup.stay}
                for update in updates
            ]
            chosen = best(states, attackers, len(updates) - attackers - 2 if self._part.multi else 1)
            for place in chosen:
                self._mean.add(updates[place], 1.0)
        return self._mean.value()

    def recorded(self) -> dict[str, Any]:
        """Return how many clients could not be judged, and how many coordinates only they hold."""
        own = {update.plan: update.state for update in self._unjudged}
        names = self._round.setup.per_submodel
        few = self._alone.only_here(self._judged)
        few += sum(state[name].numel() for state in own.values() for name in names & state.keys())
        return {"unjudged": len(self._unjudged), "too_few_holders": few}


@torch.no_grad()
def best(states: Sequence[State], attackers: int, count: int) -> list[int]:
    """Return the places of the `count` updates with the lowest scores, best first; of equal ones, the first.

    >>> states = [{"w": torch.tensor([value])} for value in (1.0, 1.1, 1.3, 9.0, 1.15)]
    >>> best(states, attackers=1, count=1), best(states, attackers=1, count=2)
    ([1], [1, 4])
    """
    n = len(states)
    distances = torch.zeros(n, n, dtype=torch.float64)
    for i in range(n):
        for j in range(i):
            distances[i, j] = distances[j, i] = _distance(states[i], states[j])
    # every row holds the distance to itself, zero, which is not one of the neighbours'
    scores = distances.sort(-1).values[:, 1 : n - attackers - 1].sum(-1)
    return scores.argsort(stable=True)[:count].tolist()


def _distance(one: State, other: State) -> float:
    """Return the squared distance of two updates."""
    return sum((one[name].double() - other[name].double()).square().sum().item() for name in one if averaged(one[name]))
