"""Rounds: Nestling's beside bare training, a research loop, Flower's simulation and pfl, on the same clients."""

from nestling.bench.rounds.rounds import rounds

__all__ = ["rounds"]
