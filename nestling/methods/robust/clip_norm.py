"""Clipped norms: the change of a client is scaled down to a largest norm, which bounds what one attacker can do.

Sun, Kairouz, Suresh, McMahan, Can You Really Backdoor Federated Learning?, 2019, §4 (norm thresholding of updates);
the norm is over all coordinates that the client merges. Departure: coordinates with fewer than three holders keep their
values, as with all robust merges here.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from nestling.cut.accept import averaged
from nestling.cut.extract import State
from nestling.data.federated import ClientData
from nestling.errors import MethodError
from nestling.methods.aggregator import Aggregator, Mean
from nestling.methods.context import RoundContext, Setup
from nestling.methods.messages import Update
from nestling.methods.part import Part
from nestling.methods.parts.holders import LEAST, Holders, accepted, shared_names, shared_values
from nestling.methods.robust.rule_checks import check_rule


@dataclass(frozen=True)
class ClipNorm(Part):
    """The weighted mean of updates whose changes have at most some norm.

    Attributes
    ----------
    limit
        The largest L2 norm of a client's change, over all that it merges.
    """

    label: ClassVar[str] = "clip-norm"
    limit: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.limit < math.inf:
            raise MethodError(f"clip-norm takes the largest norm of a change, a number above 0, not {self.limit!r}")

    @property
    def extendable(self) -> bool:
        """Return True: nothing depends on the number of rounds."""
        return True

    @property
    def takes_stale_updates(self) -> bool:
        """Return True: a discounted change is one that moves less."""
        return True

    def check(self, setup: Setup, public: ClientData | None) -> None:
        """Raise an error if the rule cannot work with an experiment."""
        del public
        check_rule(setup, self.label, weighted=True, sparse=True)

    def aggregator(self, round: RoundContext, mean: Mean) -> Aggregator:
        """Return the merge of a round by this rule."""
        return _Clipped(self.limit, round, mean)


class _Clipped:
    """Clips updates before they go into the mean."""

    def __init__(self, limit: float, round: RoundContext, mean: Mean) -> None:
        self._limit, self._round, self._mean = limit, round, mean
        self._holders, self._own = Holders(round.setup), Counter[str]()
        self._clipped = 0

    @property
    def clients(self) -> int:
        """The number of clients whose updates arrived."""
        return self._mean.clients

    @torch.no_grad()
    def add(self, update: Update, weight: float) -> None:
        """Add an update to the mean, its change clipped."""
        setup = self._round.setup
        state, sent = accepted(self._round, update), self._mean.sent(update.plan)
        self._holders.add(update)
        self._own[update.plan.key] += 1
        norm = change_norm(setup, update, state, sent)
        if norm > self._limit:
            self._clipped += 1
            share = self._limit / norm
            moved = {
                name: torch.lerp(sent[name].double(), tensor.double(), share).to(tensor.dtype)
                for name, tensor in state.items()
                if averaged(tensor)
            }
            update = replace(update, state=update.state | moved)
        self._mean.add(update, weight)

    def value(self) -> dict[str, Tensor]:
        """Return the mean; coordinates with too few holders keep their values."""
        setup, before, merged = self._round.setup, self._round.before, self._mean.value()
        for name in shared_names(setup):
            merged[name] = torch.where(self._holders.gathered(name) > 0, merged[name], before[name])
        return merged | {name: merged[first] for name, first in setup.axes.tied.items()}

    def gathered(self, name: str) -> Tensor:
        """Return the weight of each coordinate; 0 where it has too few holders."""
        return torch.where(self._holders.gathered(name) > 0, self._mean.gathered(name), 0.0)

    def submodels(self) -> dict[str, dict[str, Tensor]]:
        """Return the tensors of sub-models that at least three clients trained."""
        return {key: own for key, own in self._mean.submodels().items() if self._own[key] >= LEAST}

    def recorded(self) -> dict[str, Any]:
        """Return how many changes were clipped, and how many coordinates have too few holders."""
        few = [own for key, own in self._mean.submodels().items() if self._own[key] < LEAST]
        own = sum(tensor.numel() for tensors in few for tensor in tensors.values())
        return {"clipped": self._clipped, "too_few_holders": self._holders.too_few() + own}


def change_norm(setup: Setup, update: Update, state: State, sent: State) -> float:
    """Return the L2 norm of a client's change over all coordinates that it merges, but for counters."""
    new, old = shared_values(setup, update, state), shared_values(setup, update, sent)
    pairs = [(new[name][1], old[name][1]) for name in new]
    pairs += [(state[name], sent[name]) for name in sorted(setup.per_submodel & state.keys())]
    squares = ((one.double() - other.double()).square().sum().item() for one, other in pairs if averaged(one))
    return math.sqrt(sum(squares))
