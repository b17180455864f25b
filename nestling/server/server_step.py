"""The server's step: from the old weights and the merged ones to the new ones.

Averaging takes the merged weights as they are. The adaptive methods see the change as a gradient: FedAvgM (Hsu et al.,
2019), FedAdam and FedYogi (Reddi et al., Adaptive Federated Optimization, ICLR 2021). Coordinates that no client held
this round are left alone: their weights, and their momenta, stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from nestling.settings import ServerSettings


def step(
    settings: ServerSettings,
    old: Mapping[str, Tensor],
    merged: Mapping[str, Tensor],
    *,
    gathered: Callable[[str], Tensor],
    memory: Mapping[str, Tensor],
    trained: frozenset[str],
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the new weights and what the optimiser remembers.

    Parameters
    ----------
    settings
        The settings of the server.
    old, merged
        The state before the round, and what the clients made of it.
    gathered
        Gives the weight that each coordinate of a tensor gathered, in its shape; zero where nobody held it.
    memory
        What the last step remembered; empty at first.
    trained
        The names of the parameters; other tensors (statistics, counters) are taken as merged.

    Examples
    --------
    >>> old, merged = {"w": torch.tensor([1.0, 1.0])}, {"w": torch.tensor([2.0, 1.0])}
    >>> held, average = torch.tensor([1.0, 0.0]), ServerSettings(optimizer="fedavgm")
    >>> new, memory = step(average, old, merged, gathered=lambda _: held, memory={}, trained=frozenset({"w"}))
    >>> new["w"]
    tensor([2., 1.])
    """
    if settings.optimizer == "average":
        return dict(merged), {}
    new, kept = dict(merged), {}
    for name in merged:
        if name not in trained:
            continue
        change = merged[name] - old[name]
        held = gathered(name) > 0
        first = memory.get(f"{name}/first", torch.zeros_like(change))
        if settings.optimizer == "fedavgm":
            moved = settings.momentum * first + change
            direction = moved
        else:
            second = memory.get(f"{name}/second", torch.full_like(change, settings.tau**2))
            moved = settings.momentum * first + (1 - settings.momentum) * change
            square = change.square()
            if settings.optimizer == "fedadam":
                spread = settings.second * second + (1 - settings.second) * square
            else:
                spread = second - (1 - settings.second) * square * torch.sign(second - square)
            spread = torch.where(held, spread, second)
            size = spread.sqrt() + settings.tau
            direction = torch.where(size > 0, moved / size, 0.0)
            kept[f"{name}/second"] = spread
        kept[f"{name}/first"] = torch.where(held, moved, first)
        new[name] = torch.where(held, old[name] + settings.lr * direction, old[name])
    return new, kept
