"""`Callback`: functions that are called during a run, for a progress bar, a tracker or a notebook."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from nestling.experiment.simulation import Simulation
from nestling.methods.messages import TrainJob
from nestling.server.state import ServerState

if TYPE_CHECKING:
    from nestling.experiment.runner import Result


@dataclass(frozen=True, eq=False)
class Training:
    """The clients of the round that is going on.

    Attributes
    ----------
    jobs
        All that take part, in the order in which they are handed out: the largest first.
    done
        Those whose updates have arrived.
    now
        Those that are training.
    """

    jobs: tuple[TrainJob, ...]
    done: tuple[TrainJob, ...] = ()
    now: tuple[TrainJob, ...] = ()


class Callback:
    """Does nothing; override what you need."""

    def on_phase(self, phase: str) -> None:
        """Something else than clients or tests is waited for: ``"reading data"``, ``"saving"``."""

    def on_start(self, simulation: Simulation, state: ServerState) -> None:
        """A run starts, or is resumed after the rounds of `state`."""

    def on_training(self, training: Training) -> None:
        """A round starts, or a client has begun or ended."""

    def on_client(self) -> None:
        """The update of a client has arrived."""

    def on_evaluation(self) -> None:
        """Models are about to be tested."""

    def on_round(self, record: dict[str, Any], state: ServerState) -> None:
        """A round is done; `record` is its line in metrics.jsonl."""

    def on_end(self, result: Result) -> None:
        """The run is done."""

    def on_stop(self) -> None:
        """The run has ended, or was stopped by an error or a signal, maybe before it started: close what is open."""


class Callbacks(Callback):
    """Calls several callbacks, in order; as a context manager, it calls `on_stop` at the end."""

    def __init__(self, callbacks: Iterable[Callback]) -> None:
        self._callbacks = tuple(callbacks)
        for hook in (name for name in vars(Callback) if name.startswith("on_")):
            setattr(self, hook, partial(self._call, hook))

    def __enter__(self) -> Callbacks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.on_stop()

    def _call(self, hook: str, *arguments: Any) -> None:
        for callback in self._callbacks:
            getattr(callback, hook)(*arguments)
