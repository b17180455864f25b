"""Updates of several clients as one, where the server would do nothing but add them up."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from nestling.client.train import summed
from nestling.cut.means import Mean, room_for
from nestling.experiment.jobs import Update


@torch.no_grad()
def pooled(updates: Sequence[Update], weights: Sequence[float]) -> Update:
    """Return the mean of some updates that have one plan, of which each counts so much; of counters, the highest.

    >>> from nestling.cut import Plan
    >>> from nestling.client.train import Progress
    >>> parts = [Update((k,), Plan(), None, {"bias": torch.full((2,), float(k))}, Progress(5, 2.0, 1)) for k in (1, 4)]
    >>> pooled(parts, [2, 1]).clients, pooled(parts, [2, 1]).state
    ((1, 4), {'bias': tensor([2., 2.])})
    """
    first = updates[0].state
    floats = [name for name, tensor in first.items() if tensor.is_floating_point()]
    mean = Mean(room_for(floats, first), None, first)
    state = dict(first)
    for update, weight in zip(updates, weights, strict=True):
        mean.add([update.state[name] for name in floats], weight)
        for name in state.keys() - mean.tensors.keys():
            state[name] = torch.maximum(state[name], update.state[name])
    state |= {name: tensor.to(first[name].dtype) for name, tensor in mean.tensors.items()}
    clients = tuple(client for update in updates for client in update.clients)
    return Update(clients, updates[0].plan, updates[0].touched, state, summed(update.progress for update in updates))
