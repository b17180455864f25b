"""`Fitted`: a sub-model with what it costs; `SizeMeter`: measures plans, each one once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from nestling.budgets import Budget
from nestling.cut import Cost, Plan


@dataclass(frozen=True)
class Fitted:
    """A sub-model and its size.

    Attributes
    ----------
    plan, ratio
        Its plan, and its position on the path of plans: the share of every axis that is kept, about or exactly.
    parameters, bytes
        Parameters, and bytes of parameters and saved buffers.
    macs
        Multiply-accumulates of the forward pass of one sample, rounded up.
    memory, batch
        Peak bytes of a training step with plain SGD, and the samples of that step.
    seconds
        Median seconds of 20 training steps measured here; None if time was not limited.
    """

    plan: Plan
    ratio: float
    parameters: int
    bytes: int
    macs: int
    memory: int
    batch: int
    seconds: float | None = None

    def exceeded(self, budget: Budget) -> str:
        """Return the first limit of a budget that is exceeded, by its field; empty if the sub-model fits.

        The time counts only if it was measured.
        """
        for name in ("bytes", "macs", "memory", "seconds"):
            limit, value = getattr(budget, name), getattr(self, name)
            if limit is not None and value is not None and value > limit:
                return name
        return ""


@dataclass(frozen=True, eq=False)
class SizeMeter:
    """Measures plans.

    Attributes
    ----------
    costs
        Plan → its cost at a batch of `batch` samples.
    batch
        The samples of a training step.
    seconds
        Plan, limit → measured seconds of a training step; measuring may stop early at plans that are far above it.
    """

    costs: Callable[[Plan], Cost]
    batch: int
    seconds: Callable[[Plan, float], float]
    _known: dict[object, tuple[Cost, dict[str, float]]] = field(default_factory=dict, repr=False)

    def measured(self, plan: Plan, ratio: float, limit: float | None = None) -> Fitted:
        """Return the size of a plan; with a `limit` of time, measure the time of a step, too."""
        key = tuple(plan.sizes.items()), plan.blocks  # costs depend on how many units are kept, not on which
        if key not in self._known:
            self._known[key] = self.costs(plan), {}
        cost, times = self._known[key]
        if limit is not None and "step" not in times:
            times["step"] = self.seconds(plan, limit)
        return Fitted(
            plan=plan,
            ratio=ratio,
            parameters=cost.parameters,
            bytes=cost.bytes,
            macs=-(-cost.macs // self.batch),
            memory=cost.memory,
            batch=self.batch,
            seconds=None if limit is None else times["step"],
        )
