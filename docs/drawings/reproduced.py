"""Figures of reproductions, from the finished runs in docs/results."""

from __future__ import annotations

from pathlib import Path

from nestling.experiment.reproductions import find
from nestling.experiment.reproductions.finished_runs import read_results
from nestling.experiment.reproductions.table_runs import rows_at, table_runs
from nestling.report.reproduction_figure import figure
from nestling.report.reproduction_files import make_table

RESULTS = Path(__file__).parents[1] / "results"


def reproduced(name: str, seeds: int) -> str:
    """Return the figure of a reproduction at scale laptop, as `nestling reproduce` draws it."""
    reproduction, finished = find(name), read_results(RESULTS / f"{name}.json")
    rows = rows_at(reproduction, "laptop")
    runs = table_runs(rows, "laptop", seeds=seeds, settings=reproduction.settings)
    table = make_table(reproduction, rows, "laptop", seeds=seeds, finished=finished, runs=runs)
    return figure(table, finished, {run.preset: run.experiment for run in runs}, seeds)
