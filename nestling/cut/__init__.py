"""Cut and merge models: plans, slices, merging, smaller modules and their cost. Pure functions."""

from nestling.cut.cost import Cost, cost
from nestling.cut.extract import extract
from nestling.cut.merge import Tally
from nestling.cut.partial_merge import PartialMerge
from nestling.cut.pick import importance
from nestling.cut.plan import Plan, plan
from nestling.cut.resize import resize, submodel
from nestling.cut.wire import pack, unpack

__all__ = [
    "Cost",
    "PartialMerge",
    "Plan",
    "Tally",
    "cost",
    "extract",
    "importance",
    "pack",
    "plan",
    "resize",
    "submodel",
    "unpack",
]
