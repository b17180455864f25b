"""Training at the server: a copy of the global model that takes steps between rounds, on samples without labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from copy import deepcopy
from dataclasses import dataclass
from itertools import chain, count, islice
from math import inf
from typing import TypeVar

import torch
from torch import Tensor, nn

from nestling.cut.extract import State
from nestling.data.batches import batches
from nestling.draws import DrawnInBackward, drawing, no_draws
from nestling.errors import TrainingError
from nestling.kernels.batch_norms import batch_norms, keep_frozen
from nestling.kernels.seeded_dropout import find_draws, seed_dropout
from nestling.methods.context import RoundContext
from nestling.methods.parts.public_samples import public_batches
from nestling.methods.parts.static_norms import make_static
from nestling.safe_kernels import guard

_T = TypeVar("_T")
_MEASURED_EVERY = 100  # most steps between two looks at the held-out samples


def trainable(round: RoundContext, state: State) -> nn.Module:
    """Return a copy of the global model with the weights in `state`, ready to train with static norms."""
    model = deepcopy(round.setup.model)
    guard(model, public_batches(round, 1, first=1)[0])
    seed_dropout(model)
    model.load_state_dict(dict(state))
    model.train()
    keep_frozen(model)
    make_static(model)
    return model


def server_draws(round: RoundContext, model: nn.Module, *, shared: bool) -> AbstractContextManager[None]:
    """Return the context in which the layers of a model draw from the round's own stream; see `nestling.draws`."""
    everything = find_draws(model, public_batches(round, 2, first=2)[0]).training
    return drawing(torch.Generator().manual_seed(round.seed), everything=everything, shared=shared)


def with_any_draws(train: Callable[[bool], _T]) -> _T:
    """Return ``train(False)``, or ``train(True)`` for models that draw in the backward pass.

    With gradient checkpointing, a second forward pass needs PyTorch's own generator: the argument says whether to
    share it.
    """
    try:
        return train(False)
    except DrawnInBackward:
        return train(True)


def descend(optimizer: torch.optim.Optimizer, loss: Tensor, parameters: list[Tensor], clip_norm: float = 0.0) -> None:
    """Take a step of an optimizer down a loss, with the joint norm of the gradients of `parameters` clipped."""
    optimizer.zero_grad(set_to_none=True)
    with no_draws():
        loss.backward()
    if clip_norm:
        nn.utils.clip_grad_norm_(parameters, clip_norm, foreach=True)
    optimizer.step()


@dataclass(frozen=True)
class Objective:
    """What a model in training minimises.

    Attributes
    ----------
    loss
        Returns the loss on some samples, by their positions.
    held_out
        Returns the loss on samples that are not trained on; None if there are none.
    """

    loss: Callable[[Tensor], Tensor]
    held_out: Callable[[], float] | None = None


@dataclass(frozen=True)
class Schedule:
    """How long a server trains, and in which steps.

    Attributes
    ----------
    steps, batch
        The number of steps, and the samples in each.
    optimizer
        Returns the optimizer of some parameters.
    cosine
        Whether its learning rate falls to zero along a cosine over all steps.
    clip_norm
        The largest norm of the gradient; 0 leaves it as it is.
    patience
        Steps without a lower loss on the held-out samples after which training ends, with the weights of the lowest;
        0 for all steps.
    """

    steps: int
    batch: int
    optimizer: Callable[[list[Tensor]], torch.optim.Optimizer]
    cosine: bool = False
    clip_norm: float = 0.0
    patience: int = 0

    def batches(self, samples: int, seed: int) -> Iterator[Tensor]:
        """Yield the positions of the samples of every step: passes over all of them, shuffled anew.

        >>> steps = Schedule(3, 2, torch.optim.Adam).batches(4, seed=0)
        >>> [len(batch) for batch in steps]
        [2, 2, 2]
        """
        stream = torch.Generator().manual_seed(seed)
        passes = (batches(torch.arange(samples), self.batch, stream) for _ in count())
        return islice(chain.from_iterable(passes), self.steps)


def fit(
    round: RoundContext, start: State, objective: Callable[[nn.Module], Objective], schedule: Schedule, samples: int
) -> dict[str, Tensor]:
    """Train a copy of the global model; return its state, of which only parameters differ from `start`.

    Parameters
    ----------
    round
        The round after which the server trains.
    start
        The state to start from.
    objective
        Returns what a model minimises.
    schedule
        The steps.
    samples
        How many samples it trains on: the positions that `Objective.loss` gets are below.
    """

    def train(shared: bool) -> dict[str, Tensor]:
        model = trainable(round, start)
        trained: list[Tensor] = [parameter for parameter in model.parameters() if parameter.requires_grad]
        minimised, optimizer = objective(model), schedule.optimizer(trained)
        cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, schedule.steps) if schedule.cosine else None
        best = _Best(model, minimised.held_out if schedule.patience else None, schedule.patience)
        with server_draws(round, model, shared=shared):
            for chosen in schedule.batches(samples, round.seed):
                descend(optimizer, minimised.loss(chosen), trained, schedule.clip_norm)
                if cosine is not None:
                    cosine.step()
                if best.ends():
                    break
        return best.state()

    learned = with_any_draws(train)
    if not all(bool(learned[name].isfinite().all()) for name in round.setup.parameters):
        raise TrainingError(f"round {round.number}: the server's weights are no longer numbers: try a smaller lr")
    return {name: learned[name] if name in round.setup.parameters else value for name, value in start.items()}


class _Best:
    """The weights that a training ends with: the last ones or, if some samples are held out, the best on these."""

    def __init__(self, model: nn.Module, held_out: Callable[[], float] | None, patience: int) -> None:
        self._model, self._held_out, self._patience = model, held_out, patience
        self._every = max(1, min(_MEASURED_EVERY, patience // 4))
        self._step, self._lowest, self._at = 0, inf, 0
        self._kept: dict[str, Tensor] = {}
        self._measure()

    def ends(self) -> bool:
        """Count a step; return whether training ends after it."""
        self._step += 1
        if self._held_out is None:
            return False
        if self._step % self._every == 0:
            self._measure()
        return self._step - self._at >= self._patience

    def state(self) -> dict[str, Tensor]:
        """Return the weights that training ends with."""
        if self._step % self._every:
            self._measure()
        return self._kept or _copied(self._model)

    def _measure(self) -> None:
        if self._held_out is None:
            return
        with torch.no_grad():
            value = self._held_out()
        if value < self._lowest:
            self._lowest, self._at, self._kept = value, self._step, _copied(self._model)


def _copied(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


@contextmanager
def batch_statistics(*models: nn.Module) -> Iterator[None]:
    """Let models in training predict as in tests, except that their static norms use the statistics of the batch."""
    for model in models:
        model.eval()
        for _, norm in batch_norms(model):
            norm.train()
    try:
        yield
    finally:
        for model in models:
            model.train()
