"""A picture of who owns the tensors of a net, under several methods: asked from the methods themselves."""

from __future__ import annotations

from docs.drawings.svg import COLOURS, GREY, Picture
from nestling.experiment import find
from nestling.experiment.simulation import Overrides, simulate

_METHODS = ("fedavg", "heterofl", "nefl", "lg-fedavg", "standalone")
_KINDS = {
    "": ("shared by all", COLOURS[0]),
    "submodel": ("of a sub-model", COLOURS[1]),
    "client": ("private to a client", COLOURS[4]),
    "statistics": ("static: measured before tests", GREY),
}
_TENSORS = ("weight", "bias", "running_mean", "step")


def owners() -> str:
    """Return the drawing: a row per method, a cell per tensor of the net that NeFL trains on the digits."""
    base = find("nefl-digits")
    setups = {name: simulate(Overrides(base.with_settings([f"method={name}"]))).setup for name in _METHODS}
    tensors = [name for name in setups["nefl"].axes.dims if name.rpartition(".")[2] in _TENSORS]
    modules = list(dict.fromkeys(name.rpartition(".")[0] for name in tensors))
    tensors.sort(key=lambda name: modules.index(name.rpartition(".")[0]))
    left, top, cell, height = 140, 62, 720 / len(tensors), 28
    picture = Picture(900, 290, "Who owns the tensors of a residual net")
    picture.text(left, 34, f"{len(tensors)} tensors of a ResNet18, from the stem to the classifier", style="soft")
    for row, (name, setup) in enumerate(setups.items()):
        y = top + (height + 8) * row
        picture.text(left - 12, y + 19, name, anchor="end", bold=True)
        for column, tensor in enumerate(tensors):
            measured = "statistics" if tensor in setup.norm_statistics else ""
            _, colour = _KINDS[setup.owners.get(tensor, measured)]
            picture.rect(left + cell * column, y, cell, height, colour, style="none")
    x = left
    for text, colour in _KINDS.values():
        picture.rect(x, 258, 14, 12, colour, style="none")
        picture.text(x + 21, 269, text)
        x += 40 + 7.2 * len(text)
    return picture.svg()
