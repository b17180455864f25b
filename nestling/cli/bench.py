"""``nestling bench``: speed and memory as ratios, measured side by side in one run."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from nestling.cli.screen import print_json, print_table, working


def bench_command(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Measure speed and memory of this machine as ratios, side by side in one run.

    Takes about a minute. Leave the machine alone meanwhile: ratios bear some noise, not any amount.
    """
    rows = []
    with working("starting"):
        from nestling.bench import FIGURES  # noqa: PLC0415
    for what, measure in FIGURES.items():
        with working(f"measuring {what}"):
            rows += list(measure())
    if as_json:
        print_json([asdict(row) for row in rows])
        return
    print_table(
        {"": "left", "measured": "right", "bound": "right", "kept": "left", "note": "left"},
        [
            [
                row.name,
                f"{row.value:.2f} {row.unit}",
                row.bound,
                ("yes" if row.ok else "no") if row.bound else "",
                row.note,
            ]
            for row in rows
        ],
        caption="medians of interleaved repeats, one thread",
    )
