"""Federated learning on devices of every size: one global model, each device trains the slice it can carry."""

from nestling.axes import AxisMap, trace
from nestling.check import Report, check
from nestling.cut import Cost, Plan, Tally, cost, extract, importance, plan, resize, submodel
from nestling.errors import NestlingError

__version__ = "0.1.0"

__all__ = [
    "AxisMap",
    "Cost",
    "NestlingError",
    "Plan",
    "Report",
    "Tally",
    "check",
    "cost",
    "extract",
    "importance",
    "plan",
    "resize",
    "submodel",
    "trace",
]
