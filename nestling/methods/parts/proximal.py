"""FedProx's proximal term: μ/2 times the squared distance from the weights that the client received (Eq. 2)."""

from __future__ import annotations

from dataclasses import dataclass

from nestling.errors import MethodError
from nestling.methods.part import Part


@dataclass(frozen=True)
class Proximal(Part):
    """Keep clients near the weights that they received; the training loop adds the term (nestling.client.train).

    >>> Proximal(0.1).proximal
    0.1
    """

    mu: float

    def __post_init__(self) -> None:
        if not 0 <= self.mu < float("inf"):
            raise MethodError(f"fedprox's mu must be a number of at least 0, not {self.mu!r}")

    @property
    def proximal(self) -> float:
        """Return μ."""
        return self.mu
