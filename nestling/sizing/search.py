"""The search for the largest sub-model within a budget."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Any

from torch import nn

from nestling.axes import AxisMap
from nestling.budgets import Budget, parse_budget, written
from nestling.cut import Plan, cost
from nestling.cut.cost import with_batch
from nestling.errors import BudgetError
from nestling.sizing.fitted import Fitted, SizeMeter
from nestling.sizing.paths import PathName, PlanPath, plan_path
from nestling.sizing.step_time import submodel_seconds

_NEAR = 1.02  # bytes of a plan that is too slow, relative to one that is not, at which the search ends


def largest_plan(path: PlanPath, meter: SizeMeter, budget: Budget) -> Fitted:
    """Return the largest plan of a path that meets a budget; raise `BudgetError`, with the smallest, if none does.

    The next plan of the path exceeds a limit of bytes, MACs or memory. Time is measured last, for plans that meet
    those; as measurements differ by more, it is enough that a plan with 2 % more bytes is too slow.
    """

    def size(step: int, limit: float | None = None) -> Fitted:
        return meter.measured(path.plan(step), path.ratio(step), limit)

    def too_large(step: int) -> bool:
        return bool(size(step).exceeded(budget))

    last = path.steps
    if too_large(last):
        _check_smallest(size(0), budget)
        last = bisect_left(range(last + 1), True, lo=1, key=too_large) - 1
    limit = budget.seconds
    if limit is None or not size(last, limit).exceeded(budget):
        return size(last, limit)
    _check_smallest(size(0, limit), budget)
    fits, slow = 0, last
    while slow - fits > 1 and size(slow).bytes > _NEAR * size(fits).bytes:
        middle = (fits + slow) // 2
        if size(middle, limit).exceeded(budget):
            slow = middle
        else:
            fits = middle
    return size(fits, limit)


def _check_smallest(smallest: Fitted, budget: Budget) -> None:
    reason = smallest.exceeded(budget)
    if reason:
        raise BudgetError(
            f"no sub-model meets the budget {budget}: the smallest possible has "
            f"{written(reason, getattr(smallest, reason))}; raise the budget, or use a smaller model or batch"
        )


def fit(
    model: nn.Module,
    axes: AxisMap,
    budget: str | Budget | Iterable[str],
    *example: Any,
    batch: int = 32,
    by: PathName | PlanPath = "balanced",
    **kwexample: Any,
) -> Fitted:
    """Return the largest sub-model of a model that meets a budget.

    Bytes, MACs and memory are computed without allocating anything of the model's size. A limit of time is checked
    against the median of 20 measured training steps.

    Parameters
    ----------
    model, axes
        The whole model and its axes.
    budget
        Limits such as ``"2 MB, 50 MMACs"`` (see `nestling.budgets`).
    example
        What the model is called with; each tensor is treated as having `batch` rows.
    batch
        The samples of a training step, for memory and time.
    by
        ``"balanced"`` cuts width and depth alike (`BalancedPath`), ``"width"`` every axis by one ratio, as levels are,
        ``"depth"`` drops blocks alone; or a path of your own.

    Examples
    --------
    >>> import torch, nestling
    >>> net = nn.Sequential(nn.Linear(4, 100), nn.ReLU(), nn.Linear(100, 2))
    >>> axes = nestling.trace(net, torch.zeros(1, 4))
    >>> small = fit(net, axes, "1 kB, 300 MACs", torch.zeros(1, 4))
    >>> small.plan.sizes, small.bytes, small.macs
    ({'model.0': 35}, 988, 210)
    """
    path = plan_path(axes, by) if isinstance(by, str) else by
    return largest_plan(path, model_meter(model, axes, *example, batch=batch, **kwexample), parse_budget(budget))


def model_meter(model: nn.Module, axes: AxisMap, *example: Any, batch: int = 32, **kwexample: Any) -> SizeMeter:
    """Return the meter of a model: costs on shapes, and times of sub-models with values."""

    def costs(plan: Plan) -> Any:
        return cost(model, axes, plan, *example, batch=batch, **kwexample)

    def seconds(plan: Plan, limit: float) -> float:
        args, kwargs = with_batch(batch, example, kwexample)
        return submodel_seconds(model, axes, plan, *args, limit=limit, **kwargs)

    return SizeMeter(costs, batch, seconds)
