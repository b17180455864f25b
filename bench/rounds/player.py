"""One system on one workload, turn by turn: ``python -m bench.rounds SYSTEM WORKLOAD full|quick``."""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch

from bench.rounds.contest import Turn, own_voice, serve
from bench.rounds.floor import Floor
from bench.rounds.ours import Ours, Profiled
from bench.rounds.research import Research
from bench.rounds.workloads import Workload, find, prepare

WORKERS = 2  # that Nestling is measured with, beside one

SYSTEMS: dict[str, Callable[[Workload], Turn]] = {
    "floor": lambda workload: Floor(prepare(workload)).turn,
    "research": lambda workload: Research(prepare(workload)).turn,
    "one": lambda workload: Ours(prepare(workload, group_clients="off")).turn,
    "two": lambda workload: Ours(prepare(workload, WORKERS, group_clients="off")).turn,
    "groups": lambda workload: Ours(prepare(workload, WORKERS, group_clients="auto")).turn,
    "profile": lambda workload: Profiled(prepare(workload, group_clients="off")).turn,
}


def command(system: str, workload: str, quick: bool) -> list[str]:
    """Return the command of a system on a workload."""
    return [sys.executable, "-m", __package__, system, workload, "quick" if quick else "full"]


def main() -> None:
    """Serve the system and the workload that the command names."""
    voice = own_voice()
    torch.set_num_threads(1)
    system, workload, size = sys.argv[1:]
    serve(SYSTEMS[system](find(workload, size == "quick")), voice)
