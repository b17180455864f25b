"""The training loop: the only place where a client's weights change."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor, nn

from nestling.client.sgd import Optimizer
from nestling.data.batches import batches
from nestling.errors import TrainingError
from nestling.kernels.cross_entropy import correct
from nestling.kernels.device import exact
from nestling.methods.context import ClientContext
from nestling.methods.parts.losses import Loss, cross_entropy
from nestling.settings import LocalTraining
from nestling.torch_private import foreach_norm


@dataclass(frozen=True)
class Progress:
    """What a client can tell of its training: sums over all targets of all steps, so that clients can be added up.

    A sample is one target: an image's class, or one word of a sequence.
    """

    samples: int
    loss: float
    correct: float


def summed(parts: Iterable[Progress]) -> Progress:
    """Add up what several clients tell.

    >>> summed([Progress(10, 5.0, 2), Progress(20, 7.0, 9)])
    Progress(samples=30, loss=12.0, correct=11)
    """
    return Progress(*map(sum, zip(*((part.samples, part.loss, part.correct) for part in parts), strict=True)))


def train(
    context: ClientContext,
    samples: Tensor,
    batch: Callable[[Tensor], tuple[Tensor, Tensor]],
    how: LocalTraining,
    *,
    lr: float,
    generator: torch.Generator,
    loss: Loss = cross_entropy,
    proximal: float = 0.0,
    half: torch.dtype | None = None,
) -> Progress:
    """Train a client's model in place.

    Parameters
    ----------
    context
        The client.
    samples
        The indices of its samples, (samples,).
    batch
        Gives the inputs and targets of some of those indices.
    how, lr
        The settings, and this round's learning rate.
    generator
        Shuffles the samples.
    loss
        What to minimise.
    proximal
        FedProx's μ: half of it times the squared distance from the weights received is added to the loss.
    half
        The type of mixed precision, where the model computes in it.
    """
    model = context.model
    model.train()
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    start = [parameter.detach().clone() for parameter in parameters] if proximal else []
    optimizer = Optimizer(parameters, how, lr, half, context.scratch.setdefault(Optimizer, []), fast=context.fast)
    device = next(model.parameters()).device
    seen, total, hits = 0, exact(torch.zeros((), device=device)), exact(torch.zeros((), device=device))
    for _ in range(how.epochs):
        for chosen in batches(samples, how.batch, generator):
            inputs, targets = batch(chosen)
            with optimizer.forward():
                value, logits = loss(context, inputs, targets)
            if start:
                value = value + proximal / 2 * _distance(parameters, start)
            optimizer.step(value)
            count = int((targets >= 0).sum())
            seen += count
            total += value.detach() * count
            hits += correct(logits.detach(), targets).sum()
    if not (torch.isfinite(total) and finite(model)):
        raise TrainingError("the training loss is no longer a number: try a smaller local.lr, or local.clip=1")
    return Progress(seen, total.item(), hits.item())


def finite(model: nn.Module) -> bool:
    """Whether all that a model holds are numbers.

    >>> finite(nn.Linear(2, 2))
    True
    """
    held = [tensor for tensor in chain(model.parameters(), model.buffers()) if tensor.is_floating_point()]
    return not held or bool(torch.stack(foreach_norm(held)).isfinite().all())


def _distance(parameters: list[nn.Parameter], start: list[Tensor]) -> Tensor:
    """The squared distance from where the client started (FedProx, Eq. 2)."""
    return torch.stack([(new - old).square().sum() for new, old in zip(parameters, start, strict=True)]).sum()
