"""FedDyn: clients' losses are tilted until all of them have their minimum where the sum of them has it.

Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021, Algorithm 1. It goes with a method of any
slices (`with_feddyn`); DepthFL uses it (Kim et al., ICLR 2023).

A client minimises L_k(θ) − ⟨g_k, θ⟩ + α/2 ‖θ − θ_t‖² and remembers g_k ← g_k − α (θ_k − θ_t), which becomes the
gradient of its own loss. The server keeps h, the mean of all clients' g, and sends out the mean of their weights less
h / α.

Departures
----------
- Clients hold slices, so everything is done coordinate by coordinate: those who did not hold one in a round change
  neither their g nor h there, and what nobody held keeps its value. m, by which h is a mean, is always the number of
  all clients: where only some can hold a coordinate, its h is smaller by a constant, and zero at the same weights.
- Statistics of norms are no parameters, and are averaged as ever.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from nestling.errors import MethodError
from nestling.methods.between import After, Between, State
from nestling.methods.context import ClientContext
from nestling.methods.method import Method
from nestling.methods.parts.losses import Loss

_KIND = "feddyn/"  # in front of a tensor's name: what is remembered of it


def with_feddyn(method: Method, alpha: float) -> Method:
    """Return a method whose clients and server follow FedDyn, whatever slices they are given.

    Parameters
    ----------
    method
        A method that shares all of its parameters among all clients.
    alpha
        FedDyn's α, above 0: how much clients are held to the weights they were sent. Acar et al. use 0.01 to 0.1.

    Examples
    --------
    >>> from nestling.methods.fedavg import fedavg
    >>> with_feddyn(fedavg(), 0.1).proximal
    0.1
    """
    if not 0 < alpha < float("inf"):
        raise MethodError(f"feddyn's alpha must be a number above 0, not {alpha!r}")
    if method.masked or method.between is not None or method.remember is not None:
        raise MethodError(f"feddyn does not go with {method.name}, which has a masked loss or a memory of its own")
    return replace(
        method,
        loss=partial(tilted, loss=method.loss),
        proximal=method.proximal + alpha,
        remember=partial(gradients, alpha=alpha),
        between=partial(corrected, alpha=alpha),
        endless=True,
        weighting="none",
        alike=True,
    )


def tilted(context: ClientContext, inputs: Tensor, targets: Tensor, loss: Loss) -> tuple[Tensor, Tensor]:
    """A loss less ⟨g_k, θ⟩; the training loop adds the squared distance."""
    value, logits = loss(context, inputs, targets)
    parts = [
        (context.memory[_KIND + name] * parameter).sum()
        for name, parameter in context.model.named_parameters()
        if _KIND + name in context.memory
    ]
    return value - torch.stack(parts).sum() if parts else value, logits


@torch.no_grad()
def gradients(context: ClientContext, sent: State, alpha: float) -> dict[str, Tensor]:
    """What a client remembers after its turn: g_k − α (θ_k − θ_t)."""
    trained = {name: value for name, value in context.model.named_parameters() if value.requires_grad}
    changes = {name: alpha * (sent[name] - parameter) for name, parameter in trained.items()}
    return {_KIND + name: context.memory.get(_KIND + name, 0) + change for name, change in changes.items()}


@torch.no_grad()
def corrected(task: Between, alpha: float) -> After:
    """What the server makes of the merged weights: h, and the weights less h / α wherever somebody held them."""
    state, notes = dict(task.state), dict(task.notes)
    for name in sorted(task.parameters - task.axes.tied.keys()):
        count = task.gathered(name).to(state[name].dtype)  # clients count alike
        moved = (state[name] - task.before[name]) * count
        kept = notes.get(_KIND + name, torch.zeros_like(moved)) - alpha / task.clients * moved
        state[name] = torch.where(count > 0, state[name] - kept / alpha, state[name])
        notes[_KIND + name] = kept
    for name, first in task.axes.tied.items():
        state[name] = state[first]
    return After(state, notes)
