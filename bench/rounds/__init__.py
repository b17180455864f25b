"""Rounds: Nestling's beside bare training, a research loop, Flower's simulation and pfl, on the same clients."""

from bench.rounds.measure import rounds

__all__ = ["rounds"]
