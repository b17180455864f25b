"""Reports on finished runs: a table for the terminal, one self-contained HTML page, and figures for papers."""

from nestling.report.find import find, find_readable
from nestling.report.page import page_data, page_html, write
from nestling.report.panels import Panel, panel
from nestling.report.read import Run, read
from nestling.report.runs_by_seed import Experiment, Statistic, experiments
from nestling.report.table import compare, least, note, terminal

__all__ = [
    "Experiment",
    "Panel",
    "Run",
    "Statistic",
    "compare",
    "experiments",
    "find",
    "find_readable",
    "least",
    "note",
    "page_data",
    "page_html",
    "panel",
    "read",
    "terminal",
    "write",
]
