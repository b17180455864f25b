"""Plans that several methods share: the whole model, and the first units of every axis."""

from __future__ import annotations

from dataclasses import dataclass

from nestling.cut import Plan
from nestling.methods.context import Participant, RoundContext
from nestling.methods.part import PlanPart


@dataclass(frozen=True)
class WholeModel(PlanPart):
    """Everybody trains the whole model, whatever the device can carry."""

    @property
    def by_level(self) -> bool:
        """Return False: all clients get the same slice."""
        return False

    def plan(self, round: RoundContext, who: Participant) -> Plan:
        """Return the whole model."""
        del round, who
        return Plan(key="full")


@dataclass(frozen=True)
class PrefixPlan(PlanPart):
    """The first units of every axis, as many as the level carries (HeteroFL, §3.1): smaller slices lie in larger ones.

    That is what a `PlanPart` does by default.
    """
