"""The files of a reproduction: table.json, table.md, table.tex and figure.svg."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from nestling.experiment.reproductions.definitions import Reproduction, Row, Scale
from nestling.experiment.reproductions.finished_runs import Finished
from nestling.experiment.reproductions.paper_settings import differences
from nestling.experiment.reproductions.table_runs import TableRun
from nestling.files import write_whole
from nestling.report.reproduction_figure import figure
from nestling.report.reproduction_formats import latex, markdown
from nestling.report.reproduction_table import Table, as_json, build


def make_table(
    reproduction: Reproduction,
    rows: Sequence[Row],
    scale: Scale,
    *,
    seeds: int,
    finished: Finished,
    runs: Iterable[TableRun],
    notes: Sequence[str] = (),
) -> Table:
    """Return the table of a reproduction; at the paper's scale it notes where settings differ from the paper's."""
    experiments = {run.preset: run.experiment for run in runs}
    if scale == "paper":
        notes = [*notes, *(difference.sentence for difference in differences(reproduction.file, experiments))]
    return build(reproduction, rows, scale, seeds=seeds, finished=finished, experiments=experiments, notes=notes)


def write_files(folder: Path, table: Table, *, seeds: int, finished: Finished, runs: Iterable[TableRun]) -> None:
    """Write a table in all formats, and its figure from the runs that are finished."""
    experiments = {run.preset: run.experiment for run in runs}
    write_whole(folder / "table.json", (json.dumps(as_json(table), indent=2) + "\n").encode())
    write_whole(folder / "table.md", markdown(table).encode())
    write_whole(folder / "table.tex", latex(table).encode())
    write_whole(folder / "figure.svg", figure(table, finished, experiments, seeds).encode())
