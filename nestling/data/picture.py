"""A picture of a partition: one HTML file that needs nothing else, not even the network."""

from __future__ import annotations

from html import escape
from pathlib import Path

import torch
from torch import Tensor

from nestling.data.extras import need
from nestling.errors import DataError, first_line

SHOWN = 400  # clients in the map: more would be narrower than a pixel

_INK, _QUIET, _LINE, _ACCENT, _ACCENT2 = "#1f2933", "#6b7785", "#e4e7eb", "#2a6f97", "#e07a5f"
_SCALE = [[0.0, "#d3e7ef"], [0.12, "#8fc0d4"], [0.45, "#2a6f97"], [1.0, "#012a4a"]]  # most of it for few samples
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ margin: 2rem auto; max-width: 1120px; padding: 0 1rem; background: #fff; color: #1f2933;
  font-family: system-ui, sans-serif; }}
h1 {{ font-size: 1.5rem; margin: 0; }}
p {{ margin: .3rem 0 0; color: #6b7785; }}
</style>
</head>
<body>
<h1>{title}</h1>
<p>{about}</p>
{chart}
</body>
</html>
"""


def draw(held: Tensor, path: str | Path, title: str, about: str = "") -> Path:
    """Draw who holds what, and write it to an HTML file.

    At the top a map of clients × classes, below it how many samples clients have, and how many of them hold a class.

    Parameters
    ----------
    held
        Samples of every class that every client has, (clients, classes); see :func:`nestling.data.counts`.
    path
        The file to write.
    title, about
        The heading, and a line below it.
    """
    target = Path(path)
    text = _PAGE.format(title=escape(title), about=escape(about), chart=_chart(held))
    try:
        target.write_text(text, encoding="utf-8")
    except OSError as problem:
        raise DataError(f"the picture {str(target)!r} cannot be written: {first_line(problem)}") from problem
    return target


def _chart(held: Tensor) -> str:
    graphs = need("plotly.graph_objects", "report", "pictures")
    subplots = need("plotly.subplots", "report", "pictures")
    clients, classes = held.shape
    shown = held[:SHOWN]
    part = f"the first {SHOWN} of {clients:,} clients" if clients > SHOWN else "all clients"
    figure = subplots.make_subplots(
        rows=2,
        cols=2,
        specs=[[{"colspan": 2}, None], [{}, {}]],
        row_heights=[0.62, 0.38],
        vertical_spacing=0.16,
        horizontal_spacing=0.09,
        subplot_titles=(
            f"Samples of each class ({part}; white is none)",
            "How many samples clients have",
            "How many clients hold a class",
        ),
    )
    figure.add_trace(
        graphs.Heatmap(
            # None, not 0: who has nothing of a class stays white, so that few samples can be told from none.
            z=[[value or None for value in row] for row in shown.T.tolist()],
            colorscale=_SCALE,
            zmin=0,
            zmax=int(shown.max()),  # zmin alone would not be heeded
            xgap=1 if len(shown) <= 150 else 0,
            ygap=1 if classes <= 50 else 0,
            colorbar={"title": {"text": "samples"}, "len": 0.6, "y": 1, "yanchor": "top", "thickness": 12},
            hovertemplate="client %{x}, class %{y}: %{z:,} samples<extra></extra>",
        ),
        row=1,
        col=1,
    )
    sizes = held.sum(1)
    middles, widths, heights = _bins(sizes)
    figure.add_trace(
        graphs.Bar(
            x=middles,
            y=heights,
            width=widths,
            marker={"color": _ACCENT, "line": {"color": "#fff", "width": 1}},
            hovertemplate="about %{x:,.0f} samples: %{y:,} clients<extra></extra>",
        ),
        row=2,
        col=1,
    )
    figure.add_trace(
        graphs.Bar(
            x=list(range(classes)),
            y=(held > 0).sum(0).tolist(),
            marker={"color": _ACCENT2, "line": {"color": "#fff", "width": 1 if classes <= 50 else 0}},
            hovertemplate="class %{x}: %{y:,} clients<extra></extra>",
        ),
        row=2,
        col=2,
    )
    tick = 1 if classes <= 20 else 5 if classes <= 50 else 10
    figure.update_xaxes(title_text="client", showgrid=False, row=1, col=1)
    figure.update_yaxes(title_text="class", dtick=tick, autorange="reversed", showgrid=False, row=1, col=1)
    close = int(sizes.max() - sizes.min()) <= 8
    figure.update_xaxes(title_text="training samples", dtick=1 if close else None, showgrid=False, row=2, col=1)
    figure.update_yaxes(title_text="clients", gridcolor=_LINE, rangemode="tozero", row=2, col=1)
    figure.update_xaxes(title_text="class", dtick=tick, showgrid=False, row=2, col=2)
    figure.update_yaxes(title_text="clients", gridcolor=_LINE, rangemode="tozero", row=2, col=2)
    figure.update_xaxes(zeroline=False, ticks="")
    figure.update_yaxes(zeroline=False, ticks="")
    figure.update_annotations(font={"size": 14, "color": _INK})
    figure.update_layout(
        template="plotly_white",
        font={"family": "system-ui, sans-serif", "color": _QUIET, "size": 12},
        height=760,
        margin={"l": 60, "r": 20, "t": 50, "b": 50},
        showlegend=False,
        bargap=0.1,
    )
    page: str = figure.to_html(
        full_html=False, include_plotlyjs=True, config={"displaylogo": False, "responsive": True}
    )
    return page


def _bins(sizes: Tensor) -> tuple[list[float], list[float], list[int]]:
    """Count sizes in at most 40 bins of whole numbers: their middles, widths and counts.

    Counted here, not in the page: that would hold one number for each of perhaps hundreds of thousands of clients.

    >>> _bins(torch.tensor([3, 3, 5]))
    ([3.0, 4.0, 5.0], [1.0, 1.0, 1.0], [2, 0, 1])
    """
    low, high = int(sizes.min()), int(sizes.max())
    width = -(-(high - low + 1) // 40)
    heights = torch.bincount((sizes - low) // width).tolist()
    middles = [low + width * place + (width - 1) / 2 for place in range(len(heights))]
    return middles, [float(width)] * len(heights), heights
