"""Which sub-model of a run meets a budget."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from nestling.budgets import Budget, parse_budget, written
from nestling.cut import Plan
from nestling.cut.cost import with_batch
from nestling.cut.extract import State
from nestling.errors import BudgetError, MethodError
from nestling.events import report
from nestling.fleet import Level, parse_level
from nestling.methods import Setup
from nestling.model_inputs import arguments
from nestling.server.cost_meter import CostMeter
from nestling.sizing import Fitted, RatioPath, SizeMeter, largest_plan
from nestling.sizing.step_time import submodel_seconds


@dataclass(frozen=True)
class Choice:
    """A sub-model that was chosen for a budget.

    Attributes
    ----------
    level
        Its name and ratio.
    trained
        Whether it is the sub-model of one of the run's levels; if not, it is a slice between two of them.
    size
        Its plan, and what it costs at the batch of local training.
    """

    level: Level
    trained: bool
    size: Fitted


def meter_of(setup: Setup, costs: CostMeter) -> SizeMeter:
    """Return the meter of an experiment's sub-models, at the batch of local training."""
    batch = setup.training.batch_size

    def seconds(plan: Plan, limit: float) -> float:
        args, kwargs = with_batch(batch, *arguments(setup.example))
        return submodel_seconds(setup.model, setup.axes, plan, *args, limit=limit, **kwargs)

    return SizeMeter(costs.cost, batch, seconds)


def choose(
    setup: Setup,
    costs: CostMeter,
    method_state: State,
    levels: Iterable[Level],
    budget: str | Budget | Iterable[str],
) -> Choice:
    """Return the largest sub-model of a run that meets a budget; report which one it is.

    Where every sub-model has tensors of its own (NeFL's norms and steps), or all clients train one size, only
    sub-models that were trained come into question: the largest of them. Other methods train one family of nested
    slices, of which any may be taken: the largest plan that the method has for any ratio.

    Parameters
    ----------
    setup, costs, method_state
        The experiment, the meter of its plans, and what its server keeps for the method.
    levels
        The levels that clients trained.
    budget
        What the sub-model may cost.
    """
    limits, meter = parse_budget(budget), meter_of(setup, costs)
    trained = _trained(setup, method_state, levels)

    def size(level: Level, limit: float | None = None) -> Fitted:
        return meter.measured(trained[level], level.ratio, limit)

    def fits(level: Level) -> bool:
        return not size(level).exceeded(limits) and not size(level, limits.seconds).exceeded(limits)

    by_size = sorted(trained, key=lambda level: size(level).parameters)
    largest = next((level for level in reversed(by_size) if fits(level)), None)
    by_level = setup.method.plan.by_level
    if setup.per_submodel or not by_level:
        if largest is None:
            smallest = size(by_size[0], limits.seconds)
            name = smallest.exceeded(limits)
            whose = "its levels" if by_level else "one size"
            raise BudgetError(
                f"no sub-model meets the budget {limits}: {setup.method.name} trained {whose} alone, and the smallest, "
                f"{by_size[0].name!r}, has {written(name, getattr(smallest, name))}; raise the budget"
            )
        choice = Choice(largest, True, size(largest, limits.seconds))
    else:
        choice = _any_ratio(setup, method_state, meter, limits, trained)
        if largest is not None and size(largest, limits.seconds).parameters > choice.size.parameters:
            choice = Choice(largest, True, size(largest, limits.seconds))
    kind = "a level of the run" if choice.trained else f"between levels of {setup.method.name}"
    report(
        "sub-model chosen",
        f"the budget {limits} holds the sub-model of ratio {choice.level.name}, {kind}: "
        f"{written('bytes', choice.size.bytes)}, {written('macs', choice.size.macs)}",
        logging.INFO,
    )
    return choice


def _trained(setup: Setup, method_state: State, levels: Iterable[Level]) -> dict[Level, Plan]:
    """Return the plans of the sizes that clients train."""
    if not setup.method.plan.by_level:
        return {parse_level("a"): setup.global_plan(method_state)}
    return {level: setup.submodel_plan(level.ratio, method_state) for level in levels}


def _any_ratio(
    setup: Setup, method_state: State, meter: SizeMeter, limits: Budget, trained: dict[Level, Plan]
) -> Choice:
    """Return the largest plan of the method for any ratio; named by its level if clients train that one."""
    size = largest_plan(_path(setup, method_state), meter, limits)
    for level, plan in trained.items():
        if (plan.sizes, plan.blocks) == (size.plan.sizes, size.plan.blocks):
            return Choice(level, True, meter.measured(plan, level.ratio, limits.seconds))
    return Choice(parse_level(size.ratio), False, size)


def level_within(setup: Setup, costs: CostMeter, budget: Budget) -> Level:
    """Return the largest level whose sub-model meets a budget, of those that the method has before the first round."""
    if not setup.method.plan.by_level:
        raise BudgetError(
            f"{setup.method.name} has one size for all clients: leave out their budgets, or use a method with levels, "
            "such as heterofl"
        )
    return parse_level(largest_plan(_path(setup, None), meter_of(setup, costs), budget).ratio)


def _path(setup: Setup, method_state: State | None) -> RatioPath:
    return RatioPath(lambda ratio: setup.submodel_plan(ratio, method_state), refused=MethodError)
