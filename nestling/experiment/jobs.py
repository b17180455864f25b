"""Jobs: what clients are asked to do. Plain values, so that any engine can carry them anywhere.

A job's `state` may be what an engine's `share` returned; where the job is done it is the state itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from nestling.client.train import Progress
from nestling.cut import Plan
from nestling.kernels.grouped_layers import Layout

State = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Train:
    """Train a slice on a client's samples.

    `own` is what the client keeps to itself, in place of the slice's; `memory` what it remembers of earlier turns.
    """

    client: int
    round: int
    ratio: float
    plan: Plan
    state: State
    lr: float
    own: State = field(default_factory=dict)
    memory: State = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class GroupJob:
    """Train slices of one shape: as a grouped network, or one by one where there is no `layout`.

    The reply is a list of updates: one for all clients where the server would do nothing but add them up.
    """

    jobs: tuple[Train, ...]
    layout: Layout | None


@dataclass(frozen=True, eq=False)
class Update:
    """What a client returns: its slice after training, and how far that went; or several clients, their mean.

    `touched` is narrower than `plan` where it trained less than it was given (the classes it holds). `memory` is for
    the client's own next turn: a device would keep it, a simulation hands it to whichever worker plays the client.
    Where uploads are encoded, `upload` is what travels, and `state` holds only what the client keeps to itself.
    """

    clients: tuple[int, ...]
    plan: Plan
    touched: Plan | None
    state: State
    progress: Progress
    memory: State = field(default_factory=dict)
    upload: bytes | None = None


@dataclass(frozen=True, eq=False)
class NormStatisticsJob:
    """Tell the statistics of a sub-model's norms on the samples of some clients."""

    plan: Plan
    state: State
    clients: tuple[int, ...]
    batch: int


@dataclass(frozen=True, eq=False)
class Test:
    """Tell the logits of a sub-model on samples `start` to `stop` of the test or validation set."""

    plan: Plan
    state: State
    part: Literal["test", "validation"]
    start: int
    stop: int


@dataclass(frozen=True, eq=False)
class TestClientModelJob:
    """Tell the logits of a client's own model on the test set, with statistics of the client's own samples."""

    client: int
    plan: Plan
    state: State
    own: State
    batch: int
