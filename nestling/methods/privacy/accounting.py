"""ε of noised rounds, by Rényi differential privacy (package dp-accounting), for the sampling that really happens.

A round with noise of z · clip on a sum of changes of norm ≤ clip is a Gaussian mechanism. Its noise multiplier is the
noise over the most that the sum moves between neighbours: z if a client is added or removed, z / 2 if it is replaced by
another one, whose change may point the other way.

- Every client drawn by itself (Poisson), or everybody in all rounds: neighbours are with and without a client. Mironov,
  Talwar, Zhang, Rényi Differential Privacy of the Sampled Gaussian Mechanism, 2019.
- As many clients in every round (without replacement): neighbours have a client replaced, because the number of clients
  is fixed. Wang, Balle, Kasiviswanathan, Subsampled Rényi Differential Privacy and Analytical Moments Accountant,
  AISTATS 2019, with the library's bound.
- Real devices: who is online is not random, so nothing is gained by sampling. Every client may take part in every
  round, at most once, which costs as much as if all did. Neighbours are with and without the replies of a client, all
  else being equal: whom the server asks, who else replies in time, and how often a round is tried.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from nestling.errors import MethodError
from nestling.fleet import Participation
from nestling.imported import need

Adjacency = Literal[
    "add-or-remove-one", "add-or-remove-one, no sampling assumed", "replace-one", "replace-one within a level"
]
_LEAST, _MOST = 1e-2, 1e6  # noise multipliers that are tried
_EXACT = 1e-3  # how near to the smallest noise a search comes, relatively
_ORDERS = (*(1 + k / 10 for k in range(1, 100)), *range(11, 64), 128)  # higher ones take long and help rarely


@dataclass(frozen=True)
class Accountant:
    """What noised rounds cost.

    Attributes
    ----------
    clients, per_round
        The number of clients, and of those in a round on average.
    poisson
        Whether every client is drawn by itself.
    adjacency
        Which data sets are neighbours.

    Examples
    --------
    >>> accountant = Accountant(1000, 50, poisson=True, adjacency="add-or-remove-one")
    >>> accountant.epsilon(noise=1.0, rounds=0, delta=1e-4), accountant.epsilon(noise=0.0, rounds=100, delta=1e-4)
    (0.0, inf)
    """

    clients: int
    per_round: int
    poisson: bool
    adjacency: Adjacency

    @classmethod
    def of(cls, participation: Participation, real_counts: bool) -> Accountant:
        """Return the accountant of a fleet; with `real_counts`, each sum is divided by the number of its holders."""
        adjacency: Adjacency = "replace-one"
        if not participation.sampled:
            everybody = participation.clients
            return cls(everybody, everybody, poisson=False, adjacency="add-or-remove-one, no sampling assumed")
        if real_counts:
            adjacency = "replace-one within a level"
        elif participation.poisson or participation.everybody:
            adjacency = "add-or-remove-one"
        return cls(participation.clients, participation.per_round, participation.poisson, adjacency)

    def epsilon(self, noise: float, rounds: int, delta: float) -> float:
        """Return ε after some rounds with noise of `noise` · clip; infinite without noise."""
        if not rounds:
            return 0.0
        if not noise:
            return math.inf
        orders, spent = _spent_by_a_round(self, noise)
        rdp = need("dp_accounting.rdp", "privacy", "the part dp needs", MethodError)
        return float(rdp.compute_epsilon(orders, rounds * spent, delta)[0])

    def noise_for(self, epsilon: float, rounds: int, delta: float) -> float:
        """Return the smallest noise multiplier with which some rounds cost at most ε."""
        low, high = _LEAST, 1.0
        while self.epsilon(high, rounds, delta) > epsilon:
            low, high = high, 2 * high
            if high > _MOST:
                raise MethodError(f"no noise up to {_MOST:g} times the clip gives ε = {epsilon!r} in {rounds} rounds")
        while high > low * (1 + _EXACT):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if self.epsilon(middle, rounds, delta) > epsilon else (low, middle)
        return high


@lru_cache(maxsize=256)
def _spent_by_a_round(accountant: Accountant, noise: float) -> tuple[Any, Any]:
    """Return orders, and the Rényi divergence of a round at each of them: rounds add up."""
    library = need("dp_accounting", "privacy", "the part dp needs", MethodError)
    rdp = need("dp_accounting.rdp", "privacy", "the part dp needs", MethodError)
    removed = accountant.adjacency.startswith("add-or-remove-one")
    gaussian = library.GaussianDpEvent(noise if removed else noise / 2)
    relation = library.NeighboringRelation.ADD_OR_REMOVE_ONE if removed else library.NeighboringRelation.REPLACE_ONE
    event = gaussian
    if accountant.per_round < accountant.clients:
        event = (
            library.PoissonSampledDpEvent(accountant.per_round / accountant.clients, gaussian)
            if accountant.poisson
            else library.SampledWithoutReplacementDpEvent(accountant.clients, accountant.per_round, gaussian)
        )
    spent, log = rdp.RdpAccountant(_ORDERS, relation), logging.getLogger("absl")
    level = log.level
    log.setLevel(logging.ERROR)  # it warns of orders that it leaves out: ε is the least over the others
    try:
        spent.compose(event)
    finally:
        log.setLevel(level)
    return spent.orders, spent.rdp
