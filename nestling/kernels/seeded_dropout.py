"""Dropout that draws from the generator of `nestling.draws.drawing`, and a test for other draws of a model."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nestling.draws import counted_draws, current_generator
from nestling.model_inputs import Inputs, forward


class SeededDropout(nn.Dropout):
    """`nn.Dropout`, with the same numbers, that draws from the generator of this thread if one is set.

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
    """Whether a model draws random numbers outside of `SeededDropout`, in training and in tests."""

    training: bool
    testing: bool


def seed_dropout(model: nn.Module) -> None:
    """Make the dropout layers of a model draw from `nestling.draws.current_generator`, in place."""
    for module in model.modules():
        if type(module) is nn.Dropout:
            module.__class__ = SeededDropout


@torch.no_grad()
def find_draws(model: nn.Module, example: Inputs) -> Draws:
    """Return whether a model draws random numbers by itself, by running a copy of it on `example`.

    >>> find_draws(nn.Sequential(nn.Dropout2d(0.5)), torch.zeros(2, 3, 4, 4))
    Draws(training=True, testing=False)
    """
    twin = copy.deepcopy(model)
    for module in twin.modules():
        if isinstance(module, SeededDropout):
            module.p = 0.0  # its draws do not count
    draws = {}
    for training in (True, False):
        twin.train(training)
        try:
            draws[training] = counted_draws(lambda: forward(twin, example))[1] > 0
        except Exception:  # it will be raised again, with more context, when the model is used
            draws[training] = True
    return Draws(draws[True], draws[False])
