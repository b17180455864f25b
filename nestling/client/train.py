"""The training loop: the only place where a client's weights change."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

import torch
from torch import Tensor, nn

from nestling.data.batches import local_batches
from nestling.errors import TrainingError
from nestling.kernels.device import exact
from nestling.methods.context import ClientContext
from nestling.methods.messages import Progress
from nestling.methods.sgd import Optimizer
from nestling.tasks.task import Batch
from nestling.torch_private import foreach_norm


def train(
    client: ClientContext,
    samples: Tensor,
    batch: Callable[[Tensor], Batch],
    *,
    lr: float,
    generator: torch.Generator,
    half: torch.dtype | None = None,
) -> Progress:
    """Train a client's model in place, with the settings and the method of its experiment.

    Parameters
    ----------
    client
        The client.
    samples
        The indices of its samples, (samples,).
    batch
        Returns the inputs and targets of some of those indices.
    lr
        The learning rate of this round.
    generator
        Shuffles the samples.
    half
        The type of mixed precision, or None.
    """
    model, setup = client.model, client.setup
    training, proximal, loss_of = setup.training, setup.proximal, setup.method.loss(client)
    model.train()
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    start = [parameter.detach().clone() for parameter in parameters] if proximal else []
    buffers = client.workspace.setdefault(Optimizer, [])
    optimizer = Optimizer(parameters, training, lr, half, buffers, fast=setup.accelerate)
    device = next(model.parameters()).device
    seen, total, correct = 0, exact(torch.zeros((), device=device)), exact(torch.zeros((), device=device))
    classes = True
    for chosen in local_batches(samples, training, generator):
        inputs_and_targets = batch(chosen)
        with optimizer.forward():
            loss = loss_of(inputs_and_targets)
        value = loss.value
        if start:
            value = value + proximal / 2 * _squared_distance(parameters, start)
        optimizer.step(value)
        seen += loss.count
        total += value.detach() * loss.count
        if loss.correct is None:
            classes = False
        else:
            correct += loss.correct
    check_finite(total, model)
    return Progress(seen, total.item(), correct.item() if classes else None)


def check_finite(losses: Tensor, model: nn.Module) -> None:
    """Raise unless all losses and all values of a trained model are finite.

    >>> check_finite(torch.zeros(3), nn.Linear(2, 2))
    """
    tensors = [tensor for tensor in chain(model.parameters(), model.buffers()) if tensor.is_floating_point()]
    finite = not tensors or torch.stack(foreach_norm(tensors)).isfinite().all()
    if not (losses.isfinite().all() and finite):
        raise TrainingError("the training loss is no longer a number: try a smaller local.lr, or local.clip_norm=1")


def _squared_distance(parameters: list[nn.Parameter], start: list[Tensor]) -> Tensor:
    """Return the squared distance from the weights that the client received (FedProx, Eq. 2)."""
    return torch.stack([(new - old).square().sum() for new, old in zip(parameters, start, strict=True)]).sum()
