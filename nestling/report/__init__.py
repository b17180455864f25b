"""Reports on finished runs: a table for the terminal, and one self-contained HTML page."""

from nestling.report.find import find
from nestling.report.page import write
from nestling.report.panels import Panel, panel
from nestling.report.read import Run, read
from nestling.report.runs_by_seed import Experiment, Statistic, experiments
from nestling.report.table import NOTE, compare, least, note, terminal

__all__ = [
    "NOTE",
    "Experiment",
    "Panel",
    "Run",
    "Statistic",
    "compare",
    "experiments",
    "find",
    "least",
    "note",
    "panel",
    "read",
    "terminal",
    "write",
]
