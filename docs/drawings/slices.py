"""Pictures of axes, plans and merges, made by tracing, cutting and merging small nets."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

import nestling
from docs.drawings.svg import COLOURS, GREY, LEVELS, Picture
from nestling.axes import AxisMap
from nestling.axes.dims import leaves

_RATIOS = {"a": 1.0, "b": 1 / 2, "c": 1 / 4, "d": 1 / 8, "e": 1 / 16}


class ResidualNet(nn.Module):
    """A stem, a residual block and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.conv1, self.norm1 = nn.Conv2d(16, 24, 3, padding=1), nn.BatchNorm2d(24)
        self.conv2, self.norm2 = nn.Conv2d(24, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.head = nn.Linear(16, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Images (N, 3, H, W) → logits (N, 10)."""
        stream = self.stem(images)
        stream = torch.relu(stream + self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(stream))))))
        logits: Tensor = self.head(stream.mean((2, 3)))
        return logits


def named_axes() -> str:
    """Return a drawing of the weights of a residual net, whose edges have the colours of their axes."""
    net = ResidualNet()
    axes = nestling.trace(net, torch.zeros(1, 3, 8, 8))
    colours = dict(zip(axes.axes, COLOURS, strict=False))
    picture = Picture(900, 300, "The named axes of a residual net")
    places = {
        "stem.weight": 90,
        "conv1.weight": 270,
        "norm1.weight": 400,
        "conv2.weight": 490,
        "norm2.weight": 630,
        "head.weight": 760,
    }
    middle = 150.0
    picture.line([(40, middle), (875, middle)], GREY, 2)
    picture.line([(205, middle), (205, 55), (700, 55), (700, middle)], GREY, 2)
    picture.text(452, 45, "shortcut", anchor="middle", style="soft", size=12)
    for name, x in places.items():
        _tensor(picture, axes, name, (x, middle), colours)
    picture.circle(700, middle, 12, GREY)
    picture.text(700, middle + 6, "+", anchor="middle", size=17, bold=True)
    picture.text(30, middle - 8, "image", style="soft", size=12)
    picture.text(875, middle - 8, "logits", anchor="end", style="soft", size=12)
    x = 40
    for name, colour in colours.items():
        tensors = len(axes.uses(name))
        picture.rect(x, 262, 22, 10, colour)
        text = f"axis '{name}': {axes.axes[name]} units, in {tensors} tensors"
        picture.text(x + 30, 271, text)
        x += 300
    picture.rect(x, 262, 22, 10, GREY)
    picture.text(x + 30, 271, "frozen: input and output")
    return picture.svg()


def _tensor(picture: Picture, axes: AxisMap, name: str, place: tuple[float, float], colours: Mapping[str, str]) -> None:
    """Draw a tensor as a rectangle: height and left edge for outputs, width and upper edge for inputs."""
    (x, middle), dims = place, axes.dims[name]
    shape, edges = dims.shape, [next((colours.get(leaf.name, GREY) for leaf in leaves(dim)), GREY) for dim in dims]
    scale = 4.0
    height, width = scale * shape[0], scale * shape[1] if len(shape) > 1 else 8.0
    top = middle - height / 2
    picture.rect(x, top, width, height, edges[0], opacity=0.18, style="rule")
    picture.rect(x - 7, top, 7, height, edges[0])
    if len(shape) > 1:
        picture.rect(x, top - 7, width, 7, edges[1])
    label = name.removesuffix(".weight")
    picture.text(x + width / 2, middle + 48 + 22, label, anchor="middle", bold=True)
    picture.text(x + width / 2, middle + 48 + 38, "×".join(map(str, shape[:2])), anchor="middle", style="soft", size=12)


def picks() -> str:
    """Return a drawing of the units that prefix, rolling and random plans keep, round by round."""
    axes = nestling.trace(nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 2)), torch.zeros(1, 2))
    (name,) = axes.axes
    rounds, cell = 6, 13
    picture = Picture(900, 200, "Units of an axis that a client of half the width trains, round by round")
    titles = ("first units (HeteroFL, FjORD, NeFL)", "rolling window (FedRolex)", "random set (Federated Dropout)")
    for number, (pick, title) in enumerate(zip(("prefix", "rolling", "random"), titles, strict=True)):
        left = 60 + 285 * number
        picture.text(left, 34, title, bold=True)
        for round in range(rounds):
            options = {"rolling": {"round": round}, "random": {"seed": round}}.get(pick, {})
            kept = set(nestling.plan(axes, 0.5, pick, **options).index(name).tolist())
            for unit in range(16):
                on = unit in kept
                picture.rect(
                    left + cell * unit,
                    50 + 20 * round,
                    cell,
                    15,
                    COLOURS[number] if on else GREY,
                    opacity=1 if on else 0.22,
                )
            if not number:
                picture.text(left - 8, 62 + 20 * round, f"{round + 1}", anchor="end", style="soft", size=12)
        picture.text(left, 188, "16 units of one axis", style="soft", size=12)
    picture.turned(24, 108, "round")
    return picture.svg()


def merge() -> str:
    """Return a drawing of how many clients held each weight of a layer, in one round of five levels."""
    net = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2))
    axes = nestling.trace(net, torch.zeros(1, 2))
    picture = Picture(900, 325, "How many clients held each weight of a layer")
    titles = ("nested slices (HeteroFL)", "rolling, in round 6 (FedRolex)", "random (Federated Dropout)")
    cell = 13
    for number, (pick, title) in enumerate(zip(("prefix", "rolling", "random"), titles, strict=True)):
        tally = nestling.Tally(axes, net.state_dict())
        for client, ratio in enumerate(_RATIOS.values()):
            options = {"rolling": {"round": 5}, "random": {"seed": client}}.get(pick, {})
            plan = nestling.plan(axes, ratio, pick, **options)
            tally.add(nestling.extract(axes, plan, net.state_dict()), plan, weight=1.0)
        held = tally.weights("2.weight").int()
        left, top = 60 + 285 * number, 50
        picture.text(left, 34, title, bold=True)
        for row in range(16):
            for column in range(16):
                picture.rect(
                    left + cell * column, top + cell * row, cell, cell, LEVELS[min(int(held[row, column]) - 1, 5)]
                )
        if not number:
            picture.turned(40, top + 8 * cell, "units of the next layer")
        picture.text(left, top + 16 * cell + 20, "units of one layer", style="soft", size=12)
    for count in range(1, 6):
        picture.rect(60 + 90 * (count - 1), 297, 12, 12, LEVELS[count - 1])
        picture.text(78 + 90 * (count - 1), 308, f"{count} client{'s' if count > 1 else ''}", size=12)
    return picture.svg()
