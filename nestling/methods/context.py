"""`ClientContext`: what losses and other parts of a method see of a client while it trains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor, nn

from nestling.axes import AxisMap
from nestling.cut import Plan


@dataclass(frozen=True, eq=False)
class ClientContext:
    """A client in training.

    Attributes
    ----------
    model
        Its sub-model, in training mode.
    axes
        The axes of the *whole* model.
    plan
        What its sub-model keeps of that.
    ratio
        The width of its level.
    labels
        The classes it holds, (classes held,), where the loss is masked to them; else None.
    draw
        Its own random numbers of this round, for losses that draw something.
    levels
        The widths of all levels of the fleet, increasing.
    round
        The round, counted from 1.
    scratch
        Memory that is used again for the next batch or client; it lives as long as the model.
    memory
        What the client keeps from earlier rounds: ``kind/tensor`` → value.
    fast
        Whether our faster kernels may replace PyTorch's losses and optimizers.
    absent
        How many classes its model has no row for, because it received those of its own classes alone.
    """

    model: nn.Module
    axes: AxisMap
    plan: Plan
    ratio: float
    labels: Tensor | None
    draw: np.random.Generator
    levels: tuple[float, ...] = ()
    round: int = 1
    scratch: dict[Any, Any] = field(default_factory=dict)
    memory: Mapping[str, Tensor] = field(default_factory=dict)
    absent: int = 0
    fast: bool = True
