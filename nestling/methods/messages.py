"""The messages of the server and its clients: jobs and updates, plain values that any transport can carry."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from nestling.cut import Plan
from nestling.cut.partial_merge import PartialMerge
from nestling.kernels.grouped_layers import Layout
from nestling.methods.context import Participant


@dataclass(frozen=True)
class TrainJob:
    """Train a slice on a client's samples: who, which slice, the number of the round and its learning rate."""

    who: Participant
    plan: Plan
    round: int
    lr: float


@dataclass(frozen=True)
class NormStatisticsJob:
    """Measure the norm statistics of a sub-model on the samples of some clients, in batches of size `batch`."""

    plan: Plan
    clients: tuple[int, ...]
    batch: int


@dataclass(frozen=True)
class TestJob:
    """Run a sub-model on samples `start` to `stop` of the test or validation set, `batch` at a time."""

    __test__ = False  # pytest collects classes named Test…

    plan: Plan
    part: Literal["test", "validation"]
    start: int
    stop: int
    batch: int


@dataclass(frozen=True)
class TestOwnDataJob:
    """Run a sub-model on all samples of a client, and count those that it predicts right among the client's classes.

    The reply is two numbers: how many are right, and how many there are.
    """

    __test__ = False

    plan: Plan
    client: int
    batch: int


@dataclass(frozen=True)
class TestClientModelJob:
    """Run a client's own model on the test set, with norm statistics of the client's own samples."""

    __test__ = False

    who: Participant
    plan: Plan
    batch: int
    norm_batch: int


Job = TrainJob | NormStatisticsJob | TestJob | TestOwnDataJob | TestClientModelJob


@dataclass(frozen=True, eq=False)
class JobEnvelope:
    """A job with the tensors that it needs.

    Attributes
    ----------
    job
        The job.
    state
        The slice, or the result of an engine's `share`; a worker always gets the slice itself.
    private
        The client's own tensors, which replace those of the slice: name → tensor.
    client_state
        What the client kept from earlier rounds: ``kind/tensor`` → value.
    extra
        What the method sends beside the slice: name → tensor.
    """

    job: Job
    state: Any
    private: dict[str, Tensor] = field(default_factory=dict)
    client_state: dict[str, Tensor] = field(default_factory=dict)
    extra: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """The type of the job: engines expect jobs of one kind to take similar times."""
        return type(self.job).__name__


@dataclass(frozen=True, eq=False)
class GroupJob:
    """Train slices of one shape: as a grouped network, or one by one if `layout` is None.

    The reply is a list of updates: a single one for all clients if the server needs only their mean.
    """

    envelopes: tuple[JobEnvelope, ...]
    layout: Layout | None


@dataclass(frozen=True, eq=False)
class BranchJob:
    """Train a branch of clients, one job after another, and merge their slices where they train (``server.fan_in``).

    The reply is a `BranchReply`.

    Attributes
    ----------
    jobs
        The jobs of its clients, in the order in which they are merged.
    model
        The global model before the round, if merging needs its values; else None.
    """

    jobs: tuple[JobEnvelope | GroupJob, ...]
    model: Any = None

    @property
    def parts(self) -> int:
        """The number of its jobs: engines give it as much time for each."""
        return len(self.jobs)


@dataclass(frozen=True)
class Progress:
    """Sums over all targets of all training steps, which can be added up over clients.

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
        """The share of correct predictions; None without samples or classes."""
        return self.correct / self.samples if self.samples and self.correct is not None else None


def total_progress(parts: Iterable[Progress]) -> Progress:
    """Add up the progress of several clients.

    >>> total_progress([Progress(10, 5.0, 2), Progress(20, 7.0, 9)])
    Progress(samples=30, loss=12.0, correct=11.0)
    """
    return sum(parts, Progress())


@dataclass(frozen=True, eq=False)
class Update:
    """The result of a client: its slice after training; or the mean of several clients.

    Attributes
    ----------
    who
        The clients.
    plan
        The slice that they trained.
    rows
        The rows of `plan` that merge, if only some do (the classes that the client holds); else None.
    state
        The slice after training; with a `message`, only the client's own tensors.
    progress
        The sums of its training.
    client_state
        What the client keeps for its next round. A device would store it; a simulation gives it to the worker that
        next simulates the client.
    message
        The encoded change of the slice; None if `state` is sent as it is.
    extra
        What the method's parts reply beside the slice: name → tensor.
    bytes_up
        The bytes of the message, if it was decoded and merged before it came here; else None.
    """

    who: tuple[Participant, ...]
    plan: Plan
    rows: Plan | None
    state: dict[str, Tensor]
    progress: Progress
    client_state: dict[str, Tensor] = field(default_factory=dict)
    message: bytes | None = None
    extra: Mapping[str, Tensor] = field(default_factory=dict)
    bytes_up: int | None = None


@dataclass(frozen=True, eq=False)
class BranchReply:
    """The result of a branch of clients.

    Attributes
    ----------
    merged
        Their slices, merged.
    updates
        Their updates without the merged tensors: the state of each holds the client's own tensors alone.
    """

    merged: PartialMerge
    updates: tuple[Update, ...]
