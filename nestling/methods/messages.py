"""What the server and its clients exchange: jobs and updates, plain values that any transport can carry."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from nestling.cut import Plan
from nestling.kernels.grouped_layers import Layout
from nestling.methods.context import Participant

State = dict[str, Tensor]


@dataclass(frozen=True)
class TrainJob:
    """Train a slice on a client's samples: who, which slice, the number of the round and its learning rate."""

    who: Participant
    plan: Plan
    round: int
    lr: float


@dataclass(frozen=True)
class NormStatisticsJob:
    """Measure the statistics of a sub-model's norms on the samples of some clients, in batches of some size."""

    plan: Plan
    clients: tuple[int, ...]
    batch: int


@dataclass(frozen=True)
class TestJob:
    """Run a sub-model on samples `start` to `stop` of the test or validation set, `batch` at a time."""

    __test__ = False  # pytest looks for classes that are called Test…

    plan: Plan
    part: Literal["test", "validation"]
    start: int
    stop: int
    batch: int


@dataclass(frozen=True)
class TestClientModelJob:
    """Run a client's own model on the test set, with norm statistics of the client's own samples."""

    __test__ = False

    who: Participant
    plan: Plan
    batch: int
    norm_batch: int


Job = TrainJob | NormStatisticsJob | TestJob | TestClientModelJob


@dataclass(frozen=True, eq=False)
class JobEnvelope:
    """A job with the tensors that it needs.

    Attributes
    ----------
    job
        What to do.
    state
        The slice. It may be what an engine's `share` returned; where the job is done it is the state itself.
    private
        What the client keeps to itself, in place of the slice's: name → tensor.
    client_state
        What the client kept from earlier rounds: ``kind/tensor`` → value.
    """

    job: Job
    state: Any
    private: State = field(default_factory=dict)
    client_state: State = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """The type of the job: engines expect jobs of one kind to take similarly long."""
        return type(self.job).__name__


@dataclass(frozen=True, eq=False)
class GroupJob:
    """Train slices of one shape: as a grouped network, or one by one where there is no `layout`.

    The reply is a list of updates: one for all clients where the server needs nothing but their mean.
    """

    envelopes: tuple[JobEnvelope, ...]
    layout: Layout | None


@dataclass(frozen=True)
class Progress:
    """How far training went: sums over all targets of all steps, so that those of clients add up.

    A sample is one target: an image's class, or one word of a sequence. `correct` is None for tasks without classes.
    """

    samples: int = 0
    loss: float = 0.0
    correct: float | None = 0.0

    def __add__(self, other: Progress) -> Progress:
        known = self.correct is not None and other.correct is not None
        correct = (self.correct or 0.0) + (other.correct or 0.0) if known else None
        return Progress(self.samples + other.samples, self.loss + other.loss, correct)

    @property
    def mean_loss(self) -> float | None:
        """The mean loss; None without samples."""
        return self.loss / self.samples if self.samples else None

    @property
    def accuracy(self) -> float | None:
        """The share of targets that were predicted correctly; None without samples or classes."""
        return self.correct / self.samples if self.samples and self.correct is not None else None


def total_progress(parts: Iterable[Progress]) -> Progress:
    """Add up the progress of several clients.

    >>> total_progress([Progress(10, 5.0, 2), Progress(20, 7.0, 9)])
    Progress(samples=30, loss=12.0, correct=11.0)
    """
    return sum(parts, Progress())


@dataclass(frozen=True, eq=False)
class Update:
    """What a client returns: its slice after training; or the mean of several clients.

    Attributes
    ----------
    who
        The clients.
    plan
        The slice that they trained.
    rows
        Narrower than `plan` where only some rows of it merge (the classes that the client holds); else None.
    state
        The slice after training; where there is a `message`, only what the client keeps to itself.
    progress
        How far training went.
    client_state
        What the client keeps for its next round. A device would keep it; a simulation hands it to whichever worker
        plays the client next.
    message
        The change of the slice, encoded; None where `state` travels as it is.
    """

    who: tuple[Participant, ...]
    plan: Plan
    rows: Plan | None
    state: State
    progress: Progress
    client_state: State = field(default_factory=dict)
    message: bytes | None = None
