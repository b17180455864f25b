"""The page about a partition: how many samples of which classes the clients have."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from nestling.report.page import page_html, save
from nestling.report.panels import Figure, axis

SHOWN = 400  # clients in the map: more would be narrower than a pixel


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
    clients = len(held)
    part = f"the first {SHOWN} of {clients:,} clients" if clients > SHOWN else "all clients"
    panels = [
        ("Samples of each class", f"A column is a client ({part}); empty is none.", "first", _map(held[:SHOWN])),
        ("Sizes of clients", "How many clients have how many samples.", "overview", _sizes(held.sum(1))),
        ("Clients per class", "How many clients hold a class.", "overview", _holders(held)),
    ]
    page = {
        "title": f"{title} – Nestling",
        "kicker": "Nestling partition",
        "heading": title,
        "sentences": [about] if about else [],
        "panels": [
            {
                "name": name.lower().replace(" ", "-"),
                "title": name,
                "about": note,
                "section": where,
                "figures": [figure],
            }
            for name, note, where, figure in panels
        ],
    }
    return save(page_html(page), path)


def _map(held: Tensor) -> Figure:
    axes = {"axes": [axis("client", "client")], "measures": [axis("class", "class")]}
    return {"kind": "map", "title": "samples", **axes, "values": held.T.tolist()}


def _sizes(sizes: Tensor) -> Figure:
    middles, width, heights = _bins(sizes)
    axes = {"axes": [axis("samples", "training samples")], "measures": [axis("clients", "clients")]}
    return {
        "kind": "columns",
        **axes,
        "width": width,
        "bars": [list(pair) for pair in zip(middles, heights, strict=True)],
    }


def _holders(held: Tensor) -> Figure:
    axes = {"axes": [axis("class", "class")], "measures": [axis("clients", "clients")]}
    bars = [[place, count] for place, count in enumerate((held > 0).sum(0).tolist())]
    return {"kind": "columns", **axes, "width": 1, "bars": bars}


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
