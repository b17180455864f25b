"""The settings of local training, with HeteroFL's values as defaults."""

from __future__ import annotations

from typing import Literal

import msgspec


class Local(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a client trains.

    Attributes
    ----------
    optimizer
        ``"sgd"`` or ``"adam"``; fresh in every round.
    lr, momentum, weight_decay
        As PyTorch's optimisers take them (momentum is SGD's).
    clip
        The largest norm of the gradient; 0 leaves it as it is.
    epochs, batch
        Passes over the client's samples in one round, and samples in a step.
    schedule
        How the learning rate changes from round to round: ``"constant"``, ``"steps"`` (times `factor` after every
        round in `milestones`), or ``"cosine"`` (down towards zero, which the round after the last would have). In
        the first `warmup` rounds it rises linearly.
    proximal
        FedProx's μ, on top of any method's own: holds clients near the weights they received.
    """

    optimizer: Literal["sgd", "adam"] = "sgd"
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    clip: float = 1.0
    epochs: int = 5
    batch: int = 10
    schedule: Literal["constant", "steps", "cosine"] = "constant"
    milestones: tuple[int, ...] = ()
    factor: float = 0.1
    warmup: int = 0
    proximal: float = 0.0
