"""`Participation`: how clients come to take part in rounds; public, and the same in every round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nestling.fleet.fleet import Fleet
from nestling.fleet.levels import Level


@dataclass(frozen=True)
class Participation:
    """How clients come to take part in a round.

    Attributes
    ----------
    clients, per_round
        The number of clients, and of those who take part in a round on average.
    poisson
        Whether each is drawn by itself; if not, every round has the same number of clients.
    expected
        How many clients of each level a round has on average; of devices, as the settings say, whoever is online.
    sampled
        Whether clients are drawn at random; not where it matters who is online, as with real devices.
    """

    clients: int
    per_round: int
    poisson: bool
    expected: Mapping[Level, float]
    sampled: bool = True

    @classmethod
    def of(cls, fleet: Fleet) -> Participation:
        """Return the participation of a fleet.

        >>> from nestling.fleet import parse_mix
        >>> Participation.of(Fleet(20, 5, parse_mix("a"), sampling="poisson")).poisson
        True
        """
        return cls(fleet.clients, fleet.per_round, fleet.sampling == "poisson", fleet.expected_levels())

    @property
    def everybody(self) -> bool:
        """Whether all clients take part in every round."""
        return self.per_round == self.clients
