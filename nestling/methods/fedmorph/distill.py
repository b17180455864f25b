"""Distillation of a small network into a large one whose units are masked (FedMorph, Eqs. 4 to 7)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from msgspec.structs import replace
from torch import Tensor
from torch.func import functional_call

from nestling.cut.extract import State
from nestling.data.batches import batches
from nestling.errors import TrainingError
from nestling.methods.context import RoundContext
from nestling.methods.fedmorph.soft_masks import Masks, logistic
from nestling.methods.parts.server_training import server_draws, trainable, with_any_draws
from nestling.methods.sgd import Optimizer

_TOLERANCE = 0.1  # with a budget, λ grows while the size differs by more than this share, and falls otherwise
_PENALTY_RATE = 0.01  # the relative change of λ in one step


@dataclass(frozen=True)
class Distillation:
    """The settings of a distillation.

    Attributes
    ----------
    epochs, batch
        Epochs over the unlabelled samples, and the batch size.
    lr
        The learning rate, as a share of this round's local one.
    mask_lr
        The learning rate of the masks, as a multiple of `lr`.
    temperature
        τ of Eq. 6.
    gradient
        ``"straight-through"``: masks are 0 or 1, and have the gradient of a sigmoid of temperature 1.
        ``"plain"``: masks are the sigmoid of Eq. 6 itself.
    noise
        Whether logistic noise is added to the mask variables in every step.
    penalty
        λ: the penalty of a parameter (or a multiply-accumulate).
    budget
        The share of the size to reach by tuning λ; 0 for a fixed λ.
    """

    epochs: int = 2
    batch: int = 50
    lr: float = 0.1
    mask_lr: float = 1.0
    temperature: float = 1e-3
    gradient: Literal["straight-through", "plain"] = "straight-through"
    noise: bool = True
    penalty: float = 1.2e-6
    budget: float = 0.0


@dataclass(frozen=True, eq=False)
class Distilled:
    """The input and the result of a distillation: weights, mask variables, the masks' momenta, and λ."""

    weights: State
    scores: State
    momenta: State
    penalty: float


def divergence(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean Jensen-Shannon divergence of softmax(logits) and targets, (samples, classes), in nats (Eq. 4).

    >>> divergence(torch.tensor([[50.0, -50.0]]), torch.tensor([[0.0, 1.0]])).item()  # ln 2
    0.693...
    """
    log_p = logits.log_softmax(-1)
    p = log_p.exp()
    middle = ((p + targets) / 2).clamp_min(torch.finfo(p.dtype).tiny).log()
    first = (p * (log_p - middle)).sum(-1)
    second = (torch.xlogy(targets, targets) - targets * middle).sum(-1)
    return (first + second).mean() / 2


def soft(scores: Tensor, noise: Tensor | None, settings: Distillation) -> Tensor:
    """Return the masks m of units from their variables v, (units,) (Eq. 6)."""
    shifted = scores if noise is None else scores + noise
    if settings.gradient == "plain":
        return torch.sigmoid(shifted / settings.temperature)
    smooth = torch.sigmoid(shifted)
    return (shifted >= 0).to(smooth.dtype) + smooth - smooth.detach()


def distill(round: RoundContext, masks: Masks, targets: Tensor, start: Distilled, settings: Distillation) -> Distilled:
    """Train the large network and its masks on the small one's predictions, with a penalty on its size (Eq. 7).

    Parameters
    ----------
    round
        The model, the server's samples, and the settings of local training.
    masks
        Applies masks to weights.
    targets
        The predictions of the small network for every public sample: probabilities, (samples, classes).
    start
        The large network's state, mask variables, their momenta (none at first), and λ.
    settings
        The settings of the distillation.
    """
    return with_any_draws(lambda shared: _distill(round, masks, targets, start, settings, shared=shared))


def _distill(
    round: RoundContext, masks: Masks, targets: Tensor, start: Distilled, settings: Distillation, *, shared: bool
) -> Distilled:
    public = round.public
    assert public is not None
    model = trainable(round, start.weights)
    weights = {
        name: start.weights[name].detach().clone().requires_grad_(parameter.requires_grad)
        for name, parameter in model.named_parameters()
    }
    trained = [value for value in weights.values() if value.requires_grad]
    scores = {name: value.clone().requires_grad_() for name, value in start.scores.items()}
    lr, local = round.lr * settings.lr, round.setup.training
    optimizer = Optimizer(trained, replace(local, optimizer="sgd"), lr, fast=False)
    masks_optimizer = torch.optim.SGD(scores.values(), lr * settings.mask_lr, local.momentum)
    for name, value in start.momenta.items():
        masks_optimizer.state[scores[name]]["momentum_buffer"] = value.clone()
    stream = torch.Generator().manual_seed(round.seed)
    penalty, goal = start.penalty, settings.budget * float(masks.size({}))
    with server_draws(round, model, shared=shared):
        for _ in range(settings.epochs):
            for chosen in batches(torch.arange(len(public)), settings.batch, stream):
                drawn = {
                    name: soft(value, logistic(len(value), stream) if settings.noise else None, settings)
                    for name, value in scores.items()
                }
                inputs = public.transform(public.batch(chosen)[0], None)
                logits = functional_call(model, masks.apply(weights, drawn), (inputs,))
                factor = penalty if not goal else penalty * _excess(masks, scores, goal)
                loss = divergence(logits, targets[chosen]) + factor * masks.size(drawn)
                masks_optimizer.zero_grad()
                optimizer.step(loss)  # the gradients of all; clipped are those of the weights
                masks_optimizer.step()
                if goal:
                    far = abs(_excess(masks, scores, goal)) == 1
                    penalty = max(settings.penalty, penalty * (1 + _PENALTY_RATE if far else 1 - _PENALTY_RATE))
    learned = {name: value.detach() for name, value in weights.items()}
    if not all(bool(value.isfinite().all()) for value in (*learned.values(), *scores.values())):
        raise TrainingError(
            f"round {round.number}: the distillation's weights are no longer numbers: try a smaller option distil_lr"
        )
    momenta = {name: masks_optimizer.state[value].get("momentum_buffer") for name, value in scores.items()}
    return Distilled(
        dict(start.weights) | learned,
        {name: value.detach() for name, value in scores.items()},
        {name: value for name, value in momenta.items() if value is not None},
        penalty,
    )


@torch.no_grad()
def _excess(masks: Masks, scores: State, goal: float) -> float:
    """Return how far the size is above the goal, from −1 (too small: units are rewarded) to 1; linear near the goal."""
    size = float(masks.size({name: (value >= 0).float() for name, value in scores.items()}))
    return max(-1.0, min(1.0, (size / goal - 1) / _TOLERANCE))
