"""Rows of classes and of words: finding their axes, and renumbering labels for clients that receive only some rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor, nn

from nestling.axes import AxisMap
from nestling.axes.dims import Leaf


def output_axis(axes: AxisMap, classes: int) -> str | None:
    """Return the axis of the classes in a model's output; None if it has none of that size."""
    names = (axis.name for axis in axes.table.values() if axis.role == "output" and axis.size == classes)
    return next(names, None)


def token_axes(model: nn.Module, axes: AxisMap, ids: Tensor) -> tuple[str, ...]:
    """Return the axes of the embeddings that look up the model's inputs themselves, and not, say, positions.

    They are found by running the model once on `ids`, (batch, length).

    >>> import nestling
    >>> from nestling.nets import build
    >>> net = build("transformer-mlm", vocabulary=63, positions=64, width=16, heads=2, hidden=8, depth=1)
    >>> ids = torch.randint(63, (2, 20))
    >>> token_axes(net, nestling.trace(net, ids), ids)
    ('token.0',)
    """
    names: dict[str, None] = {}
    hooks = []
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding):

            def record(_module: nn.Module, inputs: tuple[Tensor, ...], name: str = name) -> None:
                dim = axes.dims[f"{name}.weight" if name else "weight"][0]
                if isinstance(dim, Leaf) and inputs[0].shape == ids.shape and torch.equal(inputs[0], ids):
                    names[dim.name] = None

            hooks.append(module.register_forward_pre_hook(record))
    was_training = model.training
    try:
        with torch.no_grad():
            model.eval()(ids)
    finally:
        model.train(was_training)
        for hook in hooks:
            hook.remove()
    return tuple(names)


def thawed(axes: AxisMap, names: Iterable[str]) -> AxisMap:
    """Return an axis map in which some frozen axes may be cut, so that a slice can leave out rows."""
    table = {**axes.table, **{name: replace(axes.table[name], frozen="") for name in names}}
    return replace(axes, table=table)


def ranks(rows: Tensor, numbers: Tensor) -> Tensor:
    """Return the indices of numbers in the sorted tensor `rows`; negative numbers stay as they are.

    >>> ranks(torch.tensor([2, 5, 7]), torch.tensor([7, -100, 2]))
    tensor([   2, -100,    0])
    """
    return torch.where(numbers < 0, numbers, torch.searchsorted(rows, numbers.contiguous()))
