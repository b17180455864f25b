"""The names, colours and symbols of experiments: those of a method are the same on every page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from nestling.report.runs_by_seed import Experiment

METHODS = {
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "standalone": "Standalone",
    "lg-fedavg": "LG-FedAvg",
    "fedpruned": "FedPruned",
    "heterofl": "HeteroFL",
    "fed-dropout": "Federated Dropout",
    "fedrolex": "FedRolex",
    "fjord": "FjORD",
    "depthfl": "DepthFL",
    "nefl": "NeFL",
    "fedmorph": "FedMorph",
    "fedmorphprox": "FedMorphProx",
    "feddf": "FedDF",
    "ds-fl": "DS-FL",
    "fed-et": "Fed-ET",
}

# Each has a contrast of at least 3 to 1 on the light and the dark page, and neighbours differ in lightness or hue.
COLOURS = ("#2f7ed8", "#d9730d", "#1f9d72", "#a35fe0", "#d64561", "#1796ad", "#9c7a12", "#cf4d9c", "#6b7f99", "#6f8f1f")
SYMBOLS = ("circle", "square", "diamond", "triangle", "circle", "square", "diamond", "triangle", "circle", "square")

_GREY = 8
_PREFERRED = {  # method → its place in COLOURS, wherever it is not taken by another method of the same page
    "heterofl": 0,
    "fedrolex": 1,
    "fjord": 2,
    "fed-dropout": 3,
    "nefl": 4,
    "depthfl": 5,
    "fedmorph": 6,
    "feddf": 7,
    "fedavg": _GREY,  # what other methods are compared with
    "fedprox": 9,
    "standalone": 5,
    "lg-fedavg": 9,
    "fedpruned": 3,
    "fedmorphprox": 4,
    "ds-fl": 2,
    "fed-et": 1,
}


@dataclass(frozen=True)
class Style:
    """What an experiment looks like: a place in COLOURS and SYMBOLS; hollow points and dashes if that is shared."""

    place: int
    hollow: bool = False

    @property
    def colour(self) -> str:
        """The colour in hexadecimal."""
        return COLOURS[self.place]

    @property
    def symbol(self) -> str:
        """The name of the symbol of points."""
        return SYMBOLS[self.place]


def styles(methods: Sequence[str]) -> list[Style]:
    """Return a style for every experiment, given their methods.

    A method has its own colour. Two experiments of one method share it, the second one hollow; of more, all but the
    first get free colours. Once no colour is free, colours repeat, hollow; grey comes last.

    >>> [style.place for style in styles(["fedavg", "fedrolex", "fedavg", "heterofl"])]
    [8, 1, 8, 0]
    >>> len({(style.place, style.hollow) for style in styles(["heterofl"] * 20)})
    20
    """
    counts = Counter(methods)
    result: dict[int, Style] = {}
    every = [
        Style(place, hollow) for hollow in (False, True) for place in sorted(range(len(COLOURS)), key=_GREY.__eq__)
    ]
    for number, method in enumerate(
        methods
    ):  # the first experiment of a method, unless a method before it has its colour
        style = Style(_PREFERRED[method]) if method in _PREFERRED else None
        if style and methods.index(method) == number and style not in result.values():
            result[number] = style
    for number, method in enumerate(methods):  # the second of two
        first = methods.index(method)
        if number not in result and counts[method] == 2 and first in result:
            result[number] = Style(result[first].place, hollow=True)
    for number in range(len(methods)):
        if number not in result:
            free = (style for style in every if style not in result.values())
            result[number] = next(free, every[number % len(every)])
    return [result[number] for number in range(len(methods))]


def looks(groups: Sequence[Experiment]) -> list[Style]:
    """Return the styles of experiments, which do not depend on their order."""
    order = sorted(range(len(groups)), key=lambda place: groups[place].label)
    drawn = styles([groups[place].runs[0].method for place in order])
    return [drawn[order.index(place)] for place in range(len(groups))]


def display_names(groups: Sequence[Experiment]) -> list[str]:
    """Return a short unique name for every experiment: its method, if that is enough, or else its label.

    Of ``fedavg-large-digits`` beside another FedAvg on the digits, ``FedAvg large`` is enough.
    """
    methods = Counter(group.runs[0].method for group in groups)
    names = [_name(group, alone=methods[group.runs[0].method] == 1) for group in groups]
    unique = Counter(names)
    return [name if unique[name] == 1 else group.label for name, group in zip(names, groups, strict=True)]


def _name(group: Experiment, *, alone: bool) -> str:
    run = group.runs[0]
    title = METHODS.get(run.method)
    if title is None:
        return group.label
    if alone:
        return title
    middle = group.label.removeprefix(f"{run.method}-").removesuffix(f"-{run.dataset}")
    short = f"{run.method}-{middle}-{run.dataset}" == group.label
    return f"{title} {middle}" if short else group.label
