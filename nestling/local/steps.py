"""A training step around any loss: clipping, and mixed precision on GPUs."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch
from torch import Tensor, nn

from nestling.draws import no_draws
from nestling.errors import ConfigError
from nestling.local.config import Local
from nestling.local.descent import Descent

Precision = Literal["full", "mixed"]


def half_of(device: torch.device, precision: Precision) -> torch.dtype | None:
    """The half-precision type that forward passes use on a device: none in full precision.

    >>> half_of(torch.device("cpu"), "full")
    >>> half_of(torch.device("cpu"), "mixed")
    Traceback (most recent call last):
        ...
    nestling.errors.ConfigError: precision=mixed is for GPUs: on the CPU use precision=full, which is faster there
    """
    if precision == "full":
        return None
    if device.type == "cpu":
        raise ConfigError("precision=mixed is for GPUs: on the CPU use precision=full, which is faster there")
    if device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        return torch.float16
    return torch.bfloat16


class Steps:
    """The steps of one client's training.

    Parameters
    ----------
    parameters
        The weights.
    how, lr
        The settings of training, and this round's learning rate.
    half
        The type of mixed precision, or None. Gradients in float16 are scaled up so that small ones do not vanish.
    room, fast
        As `Descent` takes them.
    """

    def __init__(
        self,
        parameters: list[nn.Parameter],
        how: Local,
        lr: float,
        half: torch.dtype | None = None,
        room: list[Tensor] | None = None,
        *,
        fast: bool = True,
    ) -> None:
        self._parameters, self._clip, self._half = parameters, how.clip, half
        self._device = parameters[0].device.type if parameters else "cpu"
        self._scaler = torch.amp.GradScaler(self._device) if half == torch.float16 else None
        self._descent = Descent(parameters, how, lr, self._scaler is None, room, fast=fast)

    def forward(self) -> AbstractContextManager[None]:
        """Where the loss is computed."""
        if self._half is None:
            return nullcontext()
        return torch.autocast(self._device, self._half)

    def step(self, loss: Tensor) -> None:
        """Move the weights to make a loss smaller."""
        if self._scaler is None or self._descent.torch is None:
            with no_draws():
                loss.backward()
            self._descent.step(self._clip)
            return
        with no_draws():
            self._scaler.scale(loss).backward()
        self._scaler.unscale_(self._descent.torch)
        if self._clip:
            nn.utils.clip_grad_norm_(self._parameters, self._clip)
        self._scaler.step(self._descent.torch)
        self._scaler.update()
        self._descent.forget()
