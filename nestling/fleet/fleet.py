"""`Fleet`: which clients take part in a round, and at which level."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nestling.errors import FleetError, nearest
from nestling.fleet.apportion import deal
from nestling.fleet.levels import Level
from nestling.fleet.mix import Mix, parse_mix
from nestling.number_checks import whole
from nestling.seeds import numpy_stream

TIER_REACH = 2  # a client of a tier draws among its own level and so many below and above it (NeFL, B.5)
_MORE = 100  # of a large fleet, so many times the clients of a round are candidates
SAMPLINGS = ("fixed", "poisson")


@dataclass(frozen=True)
class Fleet:
    """The clients, their levels, and the sampling of a round.

    Everything is a function of the seed, the round and the client, so it does not depend on the order of calls or on
    the process; in a round, nothing is computed for clients that do not take part.

    Parameters
    ----------
    clients
        The number of clients; they are numbered from 0.
    per_round
        The number of clients in a round.
    mix
        Levels and shares, as `parse_mix` returns (and accepts) them.
    assign
        ``"fixed"``: every client has one level in all rounds, in exact shares by largest remainder (HeteroFL's Fix);
        ``"dynamic"``: a level is drawn per client and round (HeteroFL's Dynamic); ``"tiers"``: every client belongs to
        the tier of one level and draws each round, uniformly, among the levels up to two below and above it (NeFL,
        B.5). NeFL's tiers have equal numbers of clients; here the numbers follow the shares.
    seed
        The seed of all draws.
    listed
        The level of every client, as its place in `mix`, instead of exact shares in random order.
    sampling
        ``"fixed"``: as many clients as `per_round` in every round; ``"poisson"``: every client takes part by itself,
        with probability per_round / clients, so that rounds may have more clients, fewer, or none.
    over_selection
        How many times as many clients start in a round as are merged.

    Examples
    --------
    >>> fleet = Fleet(clients=100, per_round=10, mix=parse_mix("a1-e9"), seed=1)
    >>> sum(fleet.level(client, round=0).name == "a" for client in range(100))
    10
    >>> len(set(fleet.sample(round=3)))
    10
    """

    clients: int
    per_round: int
    mix: Mix
    assign: str = "fixed"
    seed: int = 0
    listed: NDArray[np.integer[Any]] | None = field(default=None, compare=False, repr=False)
    sampling: str = "fixed"
    over_selection: float = 1.0

    def __post_init__(self) -> None:
        clients = whole("the number of clients", self.clients, 1)
        checked = {
            "clients": clients,
            "per_round": whole("the number of clients per round", self.per_round, 1, clients),
            "mix": parse_mix(self.mix),
            "seed": whole("the seed", self.seed, 0),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        if self.assign not in ASSIGNMENTS:
            raise FleetError(f"there is no assignment {self.assign!r}{nearest(str(self.assign), ASSIGNMENTS)}")
        if self.sampling not in SAMPLINGS:
            raise FleetError(f"there is no sampling {self.sampling!r}{nearest(str(self.sampling), SAMPLINGS)}")

    def level(self, client: int, round: int) -> Level:
        """Return the level of a client in a round.

        >>> Fleet(2, 1, parse_mix("0.3")).level(client=1, round=0)
        Level(name='0.3', ratio=0.3)
        """
        client = whole("the client", client, 0, self.clients - 1)
        return ASSIGNMENTS[self.assign](self, client, whole("the round", round, 0))

    def sample(self, round: int) -> tuple[int, ...]:
        """Return the clients of a round, in increasing order: drawn uniformly without replacement, or one by one.

        >>> Fleet(clients=342_477, per_round=2, mix=parse_mix("a")).sample(round=0)
        (..., ...)
        """
        stream = numpy_stream(self.seed, "sample", whole("the round", round, 0))
        if self.sampling == "poisson":
            return tuple(np.flatnonzero(stream.random(self.clients) < self.per_round / self.clients).tolist())
        return tuple(sorted(stream.choice(self.clients, self.started, replace=False, shuffle=False).tolist()))

    @property
    def started(self) -> int:
        """The number of clients that start in a round, whether they are merged or come too late.

        >>> Fleet(clients=100, per_round=10, mix=parse_mix("a"), over_selection=1.25).started
        13
        """
        return min(self.clients, math.ceil(round(self.per_round * self.over_selection, 9)))

    def candidates(self, round: int) -> Iterator[int]:
        """Yield clients in random order, each once: those of `sample` first, then others.

        Of large fleets, not all are yielded, but far more than take part in a round.

        >>> fleet = Fleet(clients=5, per_round=2, mix=parse_mix("a"))
        >>> order = list(fleet.candidates(round=1))
        >>> sorted(order[:2]) == list(fleet.sample(round=1)), sorted(order)
        (True, [0, 1, 2, 3, 4])
        """
        first, stream = self.sample(round), numpy_stream(self.seed, "candidates", round)
        yield from stream.permutation(first).tolist()
        more = stream.choice(self.clients, min(self.clients, _MORE * self.per_round), replace=False)
        drawn = set(first)
        yield from (client for client in more.tolist() if client not in drawn)

    def expected_levels(self) -> dict[Level, float]:
        """Return how many clients of each level a round has on average.

        >>> Fleet(clients=100, per_round=10, mix=parse_mix("a1-e9")).expected_levels()
        {Level(name='a', ratio=1.0): 1.0, Level(name='e', ratio=0.0625): 9.0}
        """
        if self.assign == "dynamic":
            return {level: share * self.per_round for level, share in self.mix}
        counts = np.bincount(self._level_numbers, minlength=len(self.mix)).tolist()
        expected = dict.fromkeys((level for level, _ in self.mix), 0.0)
        for (level, _), count in zip(self.mix, counts, strict=True):
            near = self._near(level) if self.assign == "tiers" else [level]
            for other in near:
                expected[other] += count * self.per_round / self.clients / len(near)
        return expected

    def _near(self, level: Level) -> list[Level]:
        """Return the levels that a client of a tier draws among."""
        tier = self._sorted_levels.index(level)
        return self._sorted_levels[max(tier - TIER_REACH, 0) : tier + TIER_REACH + 1]

    @cached_property
    def _level_numbers(self) -> NDArray[np.integer[Any]]:
        if self.listed is not None:
            return self.listed
        return deal([share for _, share in self.mix], self.clients, self.seed, "levels")

    @cached_property
    def _sorted_levels(self) -> list[Level]:
        return sorted((level for level, _ in self.mix), key=lambda level: level.ratio)


def _fixed(fleet: Fleet, client: int, _round: int) -> Level:
    return fleet.mix[int(fleet._level_numbers[client])][0]


def _dynamic(fleet: Fleet, client: int, round: int) -> Level:
    stream = numpy_stream(fleet.seed, "level", round, client)
    return fleet.mix[stream.choice(len(fleet.mix), p=[share for _, share in fleet.mix])][0]


def _tiers(fleet: Fleet, client: int, round: int) -> Level:
    near = fleet._near(_fixed(fleet, client, round))
    return near[numpy_stream(fleet.seed, "level", round, client).integers(len(near))]


ASSIGNMENTS: dict[str, Callable[[Fleet, int, int], Level]] = {"fixed": _fixed, "dynamic": _dynamic, "tiers": _tiers}
