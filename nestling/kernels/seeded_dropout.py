"""Dropout that draws from the generator of `nestling.draws.drawing`, and whether a model draws anything else."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nestling.draws import counted_draws, current_generator


class SeededDropout(nn.Dropout):
    """`nn.Dropout`, number by number, with a generator of its own where one is set for this thread.

    >>> from nestling.draws import drawing
    >>> layer, images = nn.Dropout(0.5), torch.ones(2, 3)
    >>> _ = torch.manual_seed(5)
    >>> plain = layer(images)
    >>> layer.__class__ = SeededDropout
    >>> with drawing(torch.Generator().manual_seed(5), everything=False):
    ...     torch.equal(layer(images), plain)
    True
    """

    def forward(self, input: Tensor) -> Tensor:
        """Set values to zero with probability `p`, and scale the others up, in training mode."""
        generator = current_generator() if self.training and self.p else None
        if generator is None or not input.is_cpu or not input.numel() or self.p == 1:
            return super().forward(input)
        # the operations of PyTorch's own kernel, in its order
        noise = torch.empty_like(input).bernoulli_(1 - self.p, generator=generator).div_(1 - self.p)
        return input.mul_(noise) if self.inplace else input * noise


@dataclass(frozen=True)
class Draws:
    """Whether a model draws random numbers elsewhere than in `SeededDropout`, when it trains and when it is tested."""

    training: bool
    testing: bool


def seed_dropout(model: nn.Module) -> None:
    """Let the dropout layers of a model draw from `nestling.draws.current_generator`, in place."""
    for module in model.modules():
        if type(module) is nn.Dropout:
            module.__class__ = SeededDropout


@torch.no_grad()
def find_draws(model: nn.Module, *example: Tensor) -> Draws:
    """Return whether a model draws random numbers by itself: found by running a copy of it on `example`.

    >>> find_draws(nn.Sequential(nn.Dropout2d(0.5)), torch.zeros(2, 3, 4, 4))
    Draws(training=True, testing=False)
    """
    twin = copy.deepcopy(model)
    for module in twin.modules():
        if isinstance(module, SeededDropout):
            module.p = 0.0  # it asks for the generator itself
    found = {}
    for training in (True, False):
        twin.train(training)
        try:
            found[training] = counted_draws(lambda: twin(*example))[1] > 0
        except Exception:  # whatever is wrong with this forward comes again, and with more to say, when it is used
            found[training] = True
    return Draws(found[True], found[False])
