"""The server's step: from the old weights and the merged ones to the new ones.

Averaging takes the merged weights as they are. The adaptive methods see the change as a gradient: FedAvgM (Hsu et al.,
2019), FedAdam and FedYogi (Reddi et al., Adaptive Federated Optimization, ICLR 2021). Coordinates that no client held
this round are left alone: their weights, and their momenta, stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import msgspec
import torch
from torch import Tensor


class Server(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How the server turns merged weights into new ones.

    Attributes
    ----------
    optimizer
        ``"average"``, ``"fedavgm"``, ``"fedadam"`` or ``"fedyogi"``.
    lr, momentum, second, tau
        The adaptive methods' step size, β₁, β₂ and τ (Algorithm 2 of Reddi et al.).
    weighting
        How much a client counts in the merge: ``"none"`` all the same, by ``"samples"``, by ``"width"``, or as the
        ``"method"`` says.
    """

    optimizer: Literal["average", "fedavgm", "fedadam", "fedyogi"] = "average"
    lr: float = 1.0
    momentum: float = 0.9
    second: float = 0.99
    tau: float = 1e-3
    weighting: Literal["method", "none", "samples", "width"] = "method"


def step(
    how: Server,
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
    how
        The settings.
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
    >>> held = torch.tensor([1.0, 0.0])
    >>> new, memory = step(
    ...     Server(optimizer="fedavgm"), old, merged, gathered=lambda _: held, memory={}, trained=frozenset({"w"})
    ... )
    >>> new["w"]
    tensor([2., 1.])
    """
    if how.optimizer == "average":
        return dict(merged), {}
    new, kept = dict(merged), {}
    for name in merged:
        if name not in trained:
            continue
        change = merged[name] - old[name]
        held = gathered(name) > 0
        first = memory.get(f"{name}/first", torch.zeros_like(change))
        if how.optimizer == "fedavgm":
            moved = how.momentum * first + change
            direction = moved
        else:
            second = memory.get(f"{name}/second", torch.full_like(change, how.tau**2))
            moved = how.momentum * first + (1 - how.momentum) * change
            square = change.square()
            if how.optimizer == "fedadam":
                spread = how.second * second + (1 - how.second) * square
            else:
                spread = second - (1 - how.second) * square * torch.sign(second - square)
            spread = torch.where(held, spread, second)
            size = spread.sqrt() + how.tau
            direction = torch.where(size > 0, moved / size, 0.0)
            kept[f"{name}/second"] = spread
        kept[f"{name}/first"] = torch.where(held, moved, first)
        new[name] = torch.where(held, old[name] + how.lr * direction, old[name])
    return new, kept
