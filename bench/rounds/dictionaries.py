"""Slices as published code cuts and averages them: in dictionaries, at index lists of rows and columns."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from nestling.axes import AxisMap
from nestling.cut import Plan
from nestling.cut.extract import cuts

Lists = dict[str, tuple[Tensor, ...]]


def index_lists(axes: AxisMap, plan: Plan) -> Lists:
    """Return, for every tensor, the rows and columns that a plan keeps; what comes after them is kept whole.

    >>> from nestling import plan, trace
    >>> axes = trace(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2)), torch.zeros(1, 3))
    >>> index_lists(axes, plan(axes, width=0.5))["0.weight"]
    (tensor([0, 1]), tensor([0, 1, 2]))
    """
    lists = {}
    for name, one in cuts(axes, plan).items():
        shape = axes.dims[name].shape
        places = one.take(torch.arange(math.prod(shape)).view(shape))
        positions = []
        for k, size in enumerate(shape[:2]):
            line = places.movedim(k, 0).flatten(1)[:, 0] if len(shape) > 1 else places
            positions.append(line // math.prod(shape[k + 1 :]) % size)
        lists[name] = tuple(positions)
    return lists


def cut(state: Mapping[str, Tensor], lists: Lists) -> dict[str, Tensor]:
    """Return the slice of a state at index lists: a copy.

    >>> cut({"weight": torch.arange(6).view(2, 3)}, {"weight": (torch.tensor([1]), torch.tensor([0, 1]))})
    {'weight': tensor([[3, 4]])}
    """
    return {name: tensor[_grid(lists[name])] if lists[name] else tensor.clone() for name, tensor in state.items()}


class Average:
    """The mean of slices, value by value; what nobody held stays as it was.

    >>> average = Average({"bias": torch.tensor([5.0, 5.0])})
    >>> for value in (1.0, 2.0):
    ...     average.add({"bias": torch.tensor([value])}, {"bias": (torch.tensor([0]),)})
    >>> average.value()
    {'bias': tensor([1.5000, 5.0000])}
    """

    def __init__(self, whole: Mapping[str, Tensor]) -> None:
        self._whole = whole
        self._sums = {name: torch.zeros_like(tensor) for name, tensor in whole.items()}
        self._counts = {name: torch.zeros_like(tensor) for name, tensor in whole.items()}

    def add(self, state: Mapping[str, Tensor], lists: Lists) -> None:
        """Add a client's slice."""
        for name, tensor in state.items():
            places = _grid(lists[name])
            self._sums[name][places] += tensor
            self._counts[name][places] += 1

    def value(self) -> dict[str, Tensor]:
        """Return the whole state."""
        return {
            name: torch.where(count > 0, self._sums[name] / count.clamp(min=1), self._whole[name]).to(count.dtype)
            for name, count in self._counts.items()
        }


def _grid(indices: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return torch.meshgrid(*indices, indexing="ij") if indices else ()
