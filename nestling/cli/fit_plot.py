"""The picture of ``nestling fit --plot``: sizes of sub-models against what they score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def draw_sizes(title: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return an SVG picture of the rows of a run: its levels, joined by a line, and the budgets beside them."""
    from nestling.report.svg_plot import Plot, Series, draw  # noqa: PLC0415

    known = sorted((row for row in rows if row["value"] is not None), key=lambda row: row["bytes"])
    levels = [row for row in known if not row["budget"]]
    fitted = [row for row in known if row["budget"]]
    metric = rows[0]["metric"]

    def panel(field: str, x_title: str) -> Plot:
        series = [
            Series("levels of the run", [row[field] for row in levels], [row["value"] for row in levels], line=True),
            Series(
                "budgets",
                [row[field] for row in fitted],
                [row["value"] for row in fitted],
                colour=1,
                texts=[row["name"] for row in fitted],
            ),
        ]
        return Plot(f"{metric} by {x_title.partition(' (')[0]}", x_title, metric, series, log_x=True)

    return draw(title, [panel("bytes", "size (bytes)"), panel("macs", "MACs (one sample, forward)")])
