"""Rows of classes and of words: which of them a client holds, and how numbers change where it received no others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor, nn

from nestling.axes import AxisMap
from nestling.axes.dims import Leaf

OUTPUT = "output of the model"  # why `trace` freezes the axis of the classes


def output_axis(axes: AxisMap, classes: int) -> str | None:
    """Return the axis along which a model gives its classes; None where it has none of that size."""
    found = (axis.name for axis in axes.table.values() if axis.frozen == OUTPUT and axis.size == classes)
    return next(found, None)


def token_axes(model: nn.Module, axes: AxisMap, ids: Tensor) -> tuple[str, ...]:
    """Return the axes of the embeddings that look up the very numbers a model reads.

    Found by running the model once on `ids`, (batch, length): position tables look up other numbers.

    >>> import nestling
    >>> from nestling.nets import build
    >>> net = build("transformer-mlm", vocabulary=63, positions=64, width=16, heads=2, hidden=8, depth=1)
    >>> ids = torch.randint(63, (2, 20))
    >>> token_axes(net, nestling.trace(net, ids), ids)
    ('token.0',)
    """
    found: dict[str, None] = {}
    hooks = []
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding):

            def look(_module: nn.Module, given: tuple[Tensor, ...], name: str = name) -> None:
                dim = axes.dims[f"{name}.weight" if name else "weight"][0]
                if isinstance(dim, Leaf) and given[0].shape == ids.shape and torch.equal(given[0], ids):
                    found[dim.name] = None

            hooks.append(module.register_forward_pre_hook(look))
    was = model.training
    try:
        with torch.no_grad():
            model.eval()(ids)
    finally:
        model.train(was)
        for hook in hooks:
            hook.remove()
    return tuple(found)


def thawed(axes: AxisMap, names: Iterable[str]) -> AxisMap:
    """Return a map in which some axes may be cut: rows that nobody asks for need not be there."""
    table = {**axes.table, **{name: replace(axes.table[name], frozen="") for name in names}}
    return replace(axes, table=table)


def ranks(kept: Tensor, numbers: Tensor) -> Tensor:
    """Return the places of numbers among those kept, which are sorted; negative numbers stay as they are.

    >>> ranks(torch.tensor([2, 5, 7]), torch.tensor([7, -100, 2]))
    tensor([   2, -100,    0])
    """
    return torch.where(numbers < 0, numbers, torch.searchsorted(kept, numbers.contiguous()))
