"""Whether a model can be trained in cohorts: found by trying, never assumed.

Three clients with random weights and different numbers of samples are trained in double precision, one by one and as a
grouped network; only where all tensors agree is a layout trusted. A forward that draws random numbers by itself is not:
in a grouped network they would come from no client's stream.
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

SAMPLES = 5  # that a trial needs
_CLIENTS = ((0, 1, 2, 3, 4), (4, 3, 2, 1), (1, 3))  # batches of 2 and 3; 2 and 2; 2 alone
_TRAINING = LocalTraining(epochs=1, batch=2, lr=0.05, weight_decay=0.01, clip=1.0)
_CLOSE = 1e-9  # an error in the sums of double precision is far below, one in the layout far above


@dataclass(frozen=True)
class Trial:
    """What came of a trial: the layout that is right, or None and the reason."""

    layout: Layout | None
    reason: str = ""


def can_group(model: nn.Module, inputs: Tensor, targets: Tensor) -> Trial:
    """Find the layout in which a model can be trained in cohorts.

    Parameters
    ----------
    model
        The model of one client; it is not changed.
    inputs, targets
        Five samples, as the model reads them, and their classes.

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
        wanted = [_alone(twin, state, client, inputs, targets) for client, state in enumerate(states)]
    except Exception as problem:  # it will come again, with more to say, when a client trains
        return Trial(None, f"it cannot be trained alone: {first_line(problem)}")
    convolves = any(isinstance(module, nn.Conv1d | nn.Conv2d) for module in model.modules())
    layouts: tuple[Layout, ...] = ("channels", "batch") if convolves else ("batch", "channels")
    for layout in layouts:
        try:
            found, drawn = counted_draws(partial(_together, twin, states, layout, inputs, targets))
        except Exception as problem:  # whatever a forward does with what it does not expect
            reason = f"its forward cannot run for several clients: {first_line(problem)}"
            continue
        if drawn:  # where it happens to agree now, it will not when it matters, nor twice alike
            return Trial(None, "its forward draws random numbers that belong to no client")
        if all(_close(one, other) for one, other in zip(found, wanted, strict=True)):
            return Trial(layout)
        reason = "its forward mixes clients"
    return Trial(None, reason)


def _random(model: nn.Module, random: torch.Generator) -> dict[str, Tensor]:
    """The model's own state with noise, so that no two clients, and no two entries, are alike."""
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
    return all(torch.allclose(one[name], wanted, rtol=_CLOSE, atol=_CLOSE) for name, wanted in other.items())
