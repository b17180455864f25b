"""The server's step: from the old weights and the merged ones to the new ones.

Averaging takes the merged weights. The adaptive methods treat the change as a gradient: FedAvgM (Hsu et al.,
2019), FedAdam and FedYogi (Reddi et al., Adaptive Federated Optimization, ICLR 2021). Coordinates that no client held
this round do not change: neither their weights nor their momenta.
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
    """Return the new weights and the new state of the optimiser.

    Parameters
    ----------
    settings
        The settings of the server.
    old, merged
        The model before the round, and the merged model of the clients.
    gathered
        Returns the weight that each coordinate of a tensor gathered, in its shape; zero where nobody held it.
    memory
        The optimiser's state after the last step; empty at first.
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
    new, new_memory = dict(merged), {}
    for name in merged:
        if name not in trained:
            continue
        change = merged[name] - old[name]
        held = gathered(name) > 0
        first = memory.get(f"{name}/first", torch.zeros_like(change))
        if settings.optimizer == "fedavgm":
            momentum = settings.beta1 * first + change
            direction = momentum
        else:
            second = memory.get(f"{name}/second", torch.full_like(change, settings.tau**2))
            momentum = settings.beta1 * first + (1 - settings.beta1) * change
            square = change.square()
            if settings.optimizer == "fedadam":
                variance = settings.beta2 * second + (1 - settings.beta2) * square
            else:
                variance = second - (1 - settings.beta2) * square * torch.sign(second - square)
            variance = torch.where(held, variance, second)
            scale = variance.sqrt() + settings.tau
            direction = torch.where(scale > 0, momentum / scale, 0.0)
            new_memory[f"{name}/second"] = variance
        new_memory[f"{name}/first"] = torch.where(held, momentum, first)
        new[name] = torch.where(held, old[name] + settings.lr * direction, old[name])
    return new, new_memory
