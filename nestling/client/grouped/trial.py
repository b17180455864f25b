"""Whether a model can be trained in groups, found by a trial.

Three clients with random weights and different numbers of samples are trained in double precision, one by one and as a
grouped network; a layout is used only if all tensors agree. Models that draw random numbers by themselves are refused:
in a grouped network the numbers would not come from any client's stream.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from nestling.axes import AxisMap
from nestling.client.grouped.train_group import Member, train_group
from nestling.client.train import train
from nestling.cut import Plan
from nestling.draws import counted_draws, drawing
from nestling.errors import first_line
from nestling.kernels.grouped_layers import Grouped, Layout, obstacle
from nestling.methods.context import ClientContext, Setup
from nestling.methods.method import Method
from nestling.methods.part import PlanPart
from nestling.settings import LocalTraining
from nestling.tasks import Classification

SAMPLES = 5  # the number of samples that a trial needs
_CLIENTS = ((0, 1, 2, 3, 4), (4, 3, 2, 1), (1, 3))  # batches of 2 and 3; 2 and 2; 2 alone
_TRAINING = LocalTraining(epochs=1, batch_size=2, lr=0.05, weight_decay=0.01, clip_norm=1.0)
_CLOSE = 1e-9  # rounding errors in double precision are far below, wrong layouts far above


@dataclass(frozen=True)
class Trial:
    """The result of a trial: the layout that works, or None and the reason."""

    layout: Layout | None
    reason: str = ""


def can_group(model: nn.Module, inputs: Tensor, targets: Tensor) -> Trial:
    """Find the layout in which a model can be trained in groups.

    Parameters
    ----------
    model
        The model of one client; it is not changed.
    inputs, targets
        Inputs of five samples, and their classes.

    Examples
    --------
    >>> can_group(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), torch.randn(5, 3), torch.zeros(5).long())
    Trial(layout='batch', reason='')
    """
    reason = obstacle(model)
    if reason:
        return Trial(None, reason)
    twin = copy.deepcopy(model).double().train()
    inputs = inputs.double() if inputs.is_floating_point() else inputs
    random = torch.Generator().manual_seed(0)
    states = [_random(twin, random) for _ in _CLIENTS]
    try:
        expected = [_alone(twin, state, client, inputs, targets) for client, state in enumerate(states)]
    except Exception as problem:  # it will be raised again, with more context, when a client trains
        return Trial(None, f"it cannot be trained alone: {first_line(problem)}")
    convolves = any(isinstance(module, nn.Conv1d | nn.Conv2d) for module in model.modules())
    layouts: tuple[Layout, ...] = ("channels", "batch") if convolves else ("batch", "channels")
    for layout in layouts:
        try:
            states_together, drawn = counted_draws(partial(_together, twin, states, layout, inputs, targets))
        except Exception as problem:  # a forward may fail in any way on inputs that it does not expect
            reason = f"its forward cannot run for several clients: {first_line(problem)}"
            continue
        if drawn:  # agreement would be a coincidence
            return Trial(None, "its forward draws random numbers that belong to no client")
        if all(_close(one, other) for one, other in zip(states_together, expected, strict=True)):
            return Trial(layout)
        reason = "its forward mixes clients"
    return Trial(None, reason)


def _random(model: nn.Module, random: torch.Generator) -> dict[str, Tensor]:
    """Return the model's state with noise, so that no two clients, and no two values, are equal."""
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for name, tensor in state.items():
        if tensor.is_floating_point():
            noise = torch.randn(tensor.shape, generator=random, dtype=torch.float64)
            tensor.add_(noise.abs() if name.endswith("running_var") else 0.1 * noise)
    return state


def _alone(
    model: nn.Module, state: dict[str, Tensor], client: int, inputs: Tensor, targets: Tensor
) -> dict[str, Tensor]:
    model.load_state_dict(state)
    task, method = Classification(classes=0), Method("trial", PlanPart())
    setup = Setup(model, AxisMap({}, {}, {}, {}), inputs[:2], task, method, _TRAINING)
    with drawing(torch.Generator().manual_seed(client)):
        train(
            ClientContext(setup, model, Plan()),
            torch.tensor(_CLIENTS[client]),
            lambda chosen: (inputs[chosen], targets[chosen]),
            lr=_TRAINING.lr,
            generator=torch.Generator().manual_seed(client),
        )
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def _together(
    model: nn.Module, states: list[dict[str, Tensor]], layout: Layout, inputs: Tensor, targets: Tensor
) -> list[dict[str, Tensor]]:
    members = [
        Member(
            state,
            torch.tensor(_CLIENTS[client]),
            torch.Generator().manual_seed(client),
            torch.Generator().manual_seed(client),
        )
        for client, state in enumerate(states)
    ]

    def batch(_: Sequence[int], chosen: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        joined = torch.cat(list(chosen))
        return inputs[joined], targets[joined]

    return train_group(Grouped(model, len(states), layout), members, batch, _TRAINING, lr=_TRAINING.lr).states()


def _close(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.allclose(one[name], value, rtol=_CLOSE, atol=_CLOSE) for name, value in other.items())
