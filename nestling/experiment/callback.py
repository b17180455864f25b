"""`Callback`: functions that are called during a run, for a progress bar, TensorBoard or a notebook."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from nestling.experiment.simulation import Simulation
from nestling.server.state import ServerState

if TYPE_CHECKING:
    from nestling.experiment.runner import Result


class Callback:
    """Does nothing; override what you need."""

    def on_start(self, simulation: Simulation, state: ServerState) -> None:
        """A run starts, or is resumed after the rounds of `state`."""

    def on_client(self) -> None:
        """The update of a client has arrived."""

    def on_evaluation(self) -> None:
        """Models are about to be tested."""

    def on_round(self, record: dict[str, Any], state: ServerState) -> None:
        """A round is done; `record` is its line in metrics.jsonl."""

    def on_end(self, result: Result) -> None:
        """The run is done."""


class Callbacks(Callback):
    """Calls several callbacks, in order."""

    def __init__(self, callbacks: Iterable[Callback]) -> None:
        self._callbacks = tuple(callbacks)
        for hook in ("on_start", "on_client", "on_evaluation", "on_round", "on_end"):
            setattr(self, hook, partial(self._call, hook))

    def _call(self, hook: str, *arguments: Any) -> None:
        for callback in self._callbacks:
            getattr(callback, hook)(*arguments)
