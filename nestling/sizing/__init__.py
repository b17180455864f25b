"""Sub-models for budgets: nested families of plans, the search for the largest that fits, and the time of a step."""

from nestling.sizing.fitted import Fitted, SizeMeter
from nestling.sizing.paths import BalancedPath, PlanPath, RatioPath, plan_path
from nestling.sizing.search import fit, largest_plan
from nestling.sizing.step_time import step_seconds

__all__ = [
    "BalancedPath",
    "Fitted",
    "PlanPath",
    "RatioPath",
    "SizeMeter",
    "fit",
    "largest_plan",
    "plan_path",
    "step_seconds",
]
