"""The sub-models of a round, cut when a job that needs one is handed out, and let go when no other will."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from nestling.cut import Plan
from nestling.engines import Engine
from nestling.experiment.jobs import State


class Slices:
    """Sub-models in the memory of an engine, each of them once, whoever is given it.

    Parameters
    ----------
    engine
        Where the jobs are done.
    cut
        Cuts the sub-model of a plan.
    plans
        What all jobs together will ask for: a plan as often as there are jobs with it.
    """

    def __init__(self, engine: Engine, cut: Callable[[Plan], State], plans: Iterable[Plan]) -> None:
        self._engine, self._cut = engine, cut
        self._left = Counter(plans)
        self._held: dict[Plan, Any] = {}

    def get(self, plan: Plan) -> Any:
        """Return what a job carries in place of the sub-model."""
        if plan not in self._held:
            self._held[plan] = self._engine.share(self._cut(plan))
        return self._held[plan]

    def done(self, plan: Plan, clients: int = 1) -> None:
        """So many clients with this plan are done."""
        self._left[plan] -= clients
        if self._left[plan] <= 0:
            self._held.pop(plan, None)
