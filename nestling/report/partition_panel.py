"""The page about a partition: how many samples of which classes the clients have."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from nestling.report.page import card, document, save
from nestling.report.panels import COLOURS, Figure, figure

SHOWN = 400  # clients in the map: more would be narrower than a pixel

_SCALE = [[0.0, "#d3e7ef"], [0.12, "#8fc0d4"], [0.45, "#2a6f97"], [1.0, "#012a4a"]]  # most shades for few samples


def draw(held: Tensor, path: str | Path, title: str, about: str = "") -> Path:
    """Write the page: a map of clients × classes, the sizes of clients, and the number of clients per class.

    Parameters
    ----------
    held
        Samples of every class that every client has, (clients, classes); see :func:`nestling.data.counts`.
    path
        The HTML file to write.
    title, about
        The heading, and a line below it.
    """
    clients, classes = held.shape
    part = f"the first {SHOWN} of {clients:,} clients" if clients > SHOWN else "all clients"
    tick = 1 if classes <= 20 else 5 if classes <= 50 else 10
    figures: list[Figure] = []
    whole = card("Samples of each class", f"A column is a client ({part}).", _map(held[:SHOWN], tick), figures, True)
    sizes = card("Sizes of clients", "How many clients have how many samples.", _sizes(held.sum(1)), figures)
    holders = card("Clients per class", "How many clients hold a class.", _holders(held, tick), figures)
    main = f'<div class="grid">{whole}</div><div class="grid">{sizes}{holders}</div>'
    return save(document(title, "Nestling partition", [about], main, figures=figures), path)


def _map(held: Tensor, tick: int) -> Figure:
    clients, classes = held.shape
    trace = {
        "type": "heatmap",
        # None instead of 0 leaves a cell empty, so that few samples differ visibly from none
        "z": [[value or None for value in row] for row in held.T.tolist()],
        "colorscale": _SCALE,
        "zmin": 0,
        "zmax": int(held.max()),  # plotly ignores zmin alone
        "xgap": 1 if clients <= 150 else 0,
        "ygap": 1 if classes <= 50 else 0,
        "colorbar": {"title": {"text": "samples"}, "thickness": 12},
        "hovertemplate": "client %{x}, class %{y}: %{z:,} samples<extra></extra>",
    }
    axes = {
        "xaxis": {"showgrid": False},
        "yaxis": {"dtick": tick, "autorange": "reversed", "showgrid": False},
    }
    return figure([trace], "client", "class", height=420, **axes)


def _sizes(sizes: Tensor) -> Figure:
    middles, width, heights = _bins(sizes)
    trace = {
        "type": "bar",
        "x": middles,
        "y": heights,
        "width": width,
        "marker": {"color": COLOURS[0]},
        "hovertemplate": "about %{x:,.0f} samples: %{y:,} clients<extra></extra>",
    }
    close = int(sizes.max() - sizes.min()) <= 8
    return figure([trace], "training samples", "clients", xaxis={"dtick": 1} if close else {})


def _holders(held: Tensor, tick: int) -> Figure:
    trace = {
        "type": "bar",
        "x": list(range(held.shape[1])),
        "y": (held > 0).sum(0).tolist(),
        "marker": {"color": COLOURS[1]},
        "hovertemplate": "class %{x}: %{y:,} clients<extra></extra>",
    }
    return figure([trace], "class", "clients", xaxis={"dtick": tick})


def _bins(sizes: Tensor) -> tuple[list[float], int, list[int]]:
    """Count sizes in at most 40 bins of whole numbers; return the middles of bins, their width and the counts.

    They are counted here and not in the page, which would hold one number per client, perhaps hundreds of thousands.

    >>> _bins(torch.tensor([3, 3, 5]))
    ([3.0, 4.0, 5.0], 1, [2, 0, 1])
    """
    low, high = int(sizes.min()), int(sizes.max())
    width = -(-(high - low + 1) // 40)
    heights = torch.bincount((sizes - low) // width).tolist()
    return [low + width * place + (width - 1) / 2 for place in range(len(heights))], width, heights
