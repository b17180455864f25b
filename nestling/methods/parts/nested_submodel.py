"""A narrower model inside a client's own that shares its weights: for losses over several widths (FjORD, §3)."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

from torch import Tensor, nn

from nestling.cut import Plan, plan, submodel
from nestling.cut.extract import cuts
from nestling.cut.resize import axes_of
from nestling.cut.slices import Cut
from nestling.errors import PlanError
from nestling.methods.context import ClientContext
from nestling.methods.parts.static_norms import make_static


def nested_submodel(client: ClientContext, width: float) -> tuple[nn.Module, dict[str, Tensor]]:
    """Return a module of the first units of a client's model, and its weights as slices of the client's.

    Run it with ``torch.func.functional_call(module, weights, inputs)``: gradients reach the client's own weights.

    Parameters
    ----------
    client
        The client; its plan must keep the first units of every axis.
    width
        The ratio relative to the *whole* model, at most the client's own.
    """
    if any(len(runs) != 1 or runs[0][0] for runs in client.plan.runs.values()):
        raise PlanError("a narrower model needs a plan that keeps the first units of every axis")
    whole = plan(client.setup.axes, width)
    if whole not in client.workspace:  # building a module takes longer than a step of a small model
        axes = axes_of(client.setup.axes, client.plan)
        inside = Plan({name: whole.index(name) for name in whole.runs if name in axes.axes})  # dropped blocks have none
        small = submodel(client.model, axes, inside)
        make_static(small)
        client.workspace[whole] = small, cuts(axes, inside)
    small, slices = client.workspace[whole]
    return small, shared_weights(client.model, slices)


def shared_weights(model: nn.Module, slices: Mapping[str, Cut]) -> dict[str, Tensor]:
    """Return slices of a model's parameters and buffers, through which gradients reach them: name → tensor."""
    tensors = chain(model.named_parameters(), model.named_buffers())
    return {name: slices[name].take(tensor) for name, tensor in tensors if name in slices}
