"""FedDyn: a linear term in each client's loss moves its minimum to that of the mean loss of all clients.

Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021, Algorithm 1. It can be added to a method
with any slices (`with_feddyn`); DepthFL uses it (Kim et al., ICLR 2023).

A client minimises L_k(θ) − ⟨g_k, θ⟩ + α/2 ‖θ − θ_t‖² (`loss`) and keeps g_k ← g_k − α (θ_k − θ_t), which approaches the
gradient of L_k (`finish`). The server keeps h, the mean of all clients' g, and sends the mean of the weights minus
h / α (`after_merge`).

Departures
----------
- Clients hold slices, so everything is computed per coordinate. A client that did not hold a coordinate in a round
  changes neither its g nor h there, and a coordinate that nobody held keeps its value. h always divides by the number
  of all clients: where only some can hold a coordinate, its h is smaller by a constant factor, and zero at the same
  weights.
- Statistics of norms are not parameters, and are averaged as usual.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from nestling.data.federated import ClientData
from nestling.errors import ConfigError, MethodError
from nestling.methods.context import AfterMerge, ClientContext, Merged, RoundContext, Setup
from nestling.methods.method import Method
from nestling.methods.part import Inner, Part
from nestling.tasks.task import Batch, LossResult

_KIND = "feddyn/"  # prefix of the names under which g_k and h are kept


@dataclass(frozen=True)
class FedDyn(Part):
    """Dynamic regularisation with weight `alpha`: each client's g_k, and the server's h."""

    label: ClassVar[str] = "feddyn"
    alpha: float

    def __post_init__(self) -> None:
        if not 0 < self.alpha < float("inf"):
            raise MethodError(f"feddyn's alpha must be a number above 0, not {self.alpha!r}")

    @property
    def proximal(self) -> float:
        """α: the training loop adds α/2 times the squared distance."""
        return self.alpha

    @property
    def extendable(self) -> bool:
        """Return True: nothing depends on the number of rounds."""
        return True

    def check(self, setup: Setup, public: ClientData | None) -> None:
        """Raise an error unless clients share all parameters and the server takes their unweighted mean."""
        del public
        server, name = setup.server, setup.method.name
        rules = [part.label for part in setup.method.overriding("aggregator")]
        if rules:
            raise ConfigError(
                f"feddyn needs the plain mean of its clients, and {rules[0]} of {name} merges otherwise: leave one out"
            )
        if server.optimizer != "average" or server.weighting not in ("method", "none"):
            raise ConfigError(
                f"{name} needs the plain mean of its clients: server.optimizer=average and server.weighting=none, "
                f"not {server.optimizer} and {server.weighting}"
            )
        own = sorted(setup.parameters & setup.owners.keys())
        if own:
            raise ConfigError(f"feddyn needs parameters that all clients share, and {own[0]} of {name} is not")

    def loss(self, client: ClientContext, batch: Batch, inner: Inner) -> LossResult:
        """Return the loss minus ⟨g_k, θ⟩; the training loop adds α/2 ‖θ − θ_t‖²."""
        loss = inner(batch)
        terms = [
            (client.client_state[_KIND + name] * parameter).sum()
            for name, parameter in client.model.named_parameters()
            if _KIND + name in client.client_state
        ]
        return replace(loss, value=loss.value - torch.stack(terms).sum()) if terms else loss

    @torch.no_grad()
    def finish(self, client: ClientContext) -> dict[str, Tensor]:
        """Return the client's new g_k: g_k − α (θ_k − θ_t)."""
        trained = {name: value for name, value in client.model.named_parameters() if value.requires_grad}
        sent = {name: client.sent[name].to(parameter.device) for name, parameter in trained.items()}
        changes = {name: self.alpha * (sent[name] - parameter) for name, parameter in trained.items()}
        return {_KIND + name: client.client_state.get(_KIND + name, 0) + change for name, change in changes.items()}

    @torch.no_grad()
    def after_merge(self, round: RoundContext, merged: Merged) -> AfterMerge:
        """Update h ← h − α/m Σ_k (θ_k − θ_t), and subtract h / α from the weights that some client held."""
        setup, model, state = round.setup, dict(merged.model), dict(round.method_state)
        for name in sorted(setup.parameters - setup.axes.tied.keys()):
            count = merged.gathered(name).to(model[name].dtype)  # all clients have weight 1
            moved = (model[name] - round.before[name]) * count
            h = state.get(_KIND + name, torch.zeros_like(moved)) - self.alpha / setup.clients * moved
            model[name] = torch.where(count > 0, model[name] - h / self.alpha, model[name])
            state[_KIND + name] = h
        for name, first in setup.axes.tied.items():
            model[name] = model[first]
        return AfterMerge(model, state)


def with_feddyn(method: Method, alpha: float) -> Method:
    """Return a method whose clients and server follow FedDyn, whatever slices they are given.

    Parameters
    ----------
    method
        A method whose clients share all parameters; in the result, all clients have the same weight.
    alpha
        FedDyn's α, above 0: how strongly clients are kept near the weights they received. Acar et al. use 0.01 to 0.1.

    Examples
    --------
    >>> from nestling.methods.fedavg import fedavg
    >>> with_feddyn(fedavg(), 0.1).proximal
    0.1
    """
    reasons = {
        "output_mask": "has a masked loss: set options.masked=false",
        "finish": "already keeps tensors at its clients",
        "after_merge": "changes the model after the merge",
    }
    for hook, reason in reasons.items():
        if method.overriding(hook):
            raise MethodError(f"feddyn cannot be combined with {method.name}, which {reason}")
    return replace(method, weighting="none").with_parts(FedDyn(alpha))
