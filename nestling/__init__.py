"""Federated learning on devices of every size: one global model, each device trains the slice it can carry."""

import importlib
from typing import TYPE_CHECKING, Any

from nestling.errors import NestlingError

if TYPE_CHECKING:
    from nestling.axes import AxisMap, trace
    from nestling.cut import (
        Cost,
        PartialMerge,
        Plan,
        Tally,
        cost,
        extract,
        importance,
        pack,
        plan,
        resize,
        submodel,
        unpack,
    )
    from nestling.data import Dataset, Partition, partition
    from nestling.experiment import Federated, LoadedRun, Result, federate, load, resume, run
    from nestling.methods import Method, Part, PlanPart
    from nestling.proof import Report, check
    from nestling.settings import Experiment
    from nestling.sizing import Fitted, fit

__version__ = "0.2.0"

__all__ = [
    "AxisMap",
    "Cost",
    "Dataset",
    "Experiment",
    "Federated",
    "Fitted",
    "LoadedRun",
    "Method",
    "NestlingError",
    "Part",
    "PartialMerge",
    "Partition",
    "Plan",
    "PlanPart",
    "Report",
    "Result",
    "Tally",
    "check",
    "cost",
    "extract",
    "federate",
    "fit",
    "importance",
    "load",
    "pack",
    "partition",
    "plan",
    "resize",
    "resume",
    "run",
    "submodel",
    "trace",
    "unpack",
]

# Names are imported when first used: torch takes over a second to import, and `nestling --help` does not need it.
_MODULES = {
    name: module
    for module, names in {
        "nestling.axes": "AxisMap trace",
        "nestling.proof": "Report check",
        "nestling.cut": "Cost PartialMerge Plan Tally cost extract importance pack plan resize submodel unpack",
        "nestling.data": "Dataset Partition partition",
        "nestling.methods": "Method Part PlanPart",
        "nestling.experiment": "Federated LoadedRun Result federate load resume run",
        "nestling.settings": "Experiment",
        "nestling.sizing": "Fitted fit",
    }.items()
    for name in names.split()
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
