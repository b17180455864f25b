"""Events: what went differently than planned without stopping a run, such as a lost worker or a slower fallback.

Code anywhere calls `report`. The event goes to whoever collects in this context: the `EventLog` of a run, which logs
it and keeps it in the run directory, or `collect` in a worker process, whose events travel back with its reply. Where
nobody collects, it goes to the logger ``nestling`` directly.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path

logger = logging.getLogger("nestling")


@dataclass(frozen=True)
class Event:
    """One thing that happened.

    Attributes
    ----------
    kind
        What happened, in a few words that are the same every time, such as ``"worker lost"``.
    message
        The sentence for people: who, why, and what was done instead.
    level
        A level of `logging`: ``WARNING`` for what people should see, ``INFO`` for what ``--verbose`` shows.
    round
        The round it happened in, filled in by the run's log; 0 before the first round.
    """

    kind: str
    message: str
    level: int = logging.WARNING
    round: int = 0


def report(kind: str, message: str, level: int = logging.WARNING) -> None:
    """Tell that something happened.

    >>> with collect() as events:
    ...     report("worker lost", "worker 3 ended with exit code -9; its job is given to another")
    >>> events[0].kind
    'worker lost'
    """
    forward([Event(kind, message, level)])


def forward(events: Iterable[Event]) -> None:
    """Hand events on to whoever collects here, such as those that came back from a worker process."""
    receive = _RECEIVER.get()
    for event in events:
        receive(event)


@contextmanager
def collect() -> Iterator[list[Event]]:
    """Collect all events of this context in a list instead of logging them."""
    events: list[Event] = []
    with _receiving(events.append):
        yield events


class EventLog:
    """The events of one run: each kind is logged once per round, counted, and kept in ``events.jsonl``.

    Parameters
    ----------
    folder
        The run directory; None keeps nothing on disk.

    Examples
    --------
    >>> log = EventLog(None)
    >>> with log.active():
    ...     log.round = 1
    ...     report("worker lost", "worker 1 is gone", logging.DEBUG)
    ...     report("worker lost", "worker 2 is gone", logging.DEBUG)
    >>> log.totals()
    {'worker lost': 2}
    """

    def __init__(self, folder: Path | None) -> None:
        self._path = None if folder is None else folder / "events.jsonl"
        self._counts: Counter[str] = Counter()
        self._logged: set[tuple[str, int]] = set()
        self.round = 0

    @contextmanager
    def active(self) -> Iterator[EventLog]:
        """Receive the events of this context."""
        with _receiving(self._receive):
            yield self

    def totals(self) -> dict[str, int]:
        """Return how often each kind of event happened, in alphabetical order."""
        return dict(sorted(self._counts.items()))

    def _receive(self, event: Event) -> None:
        event = replace(event, round=self.round)
        self._counts[event.kind] += 1
        again = (event.kind, event.round) in self._logged
        self._logged.add((event.kind, event.round))
        _log(replace(event, level=logging.DEBUG) if again else event)
        if self._path is not None and self._path.parent.is_dir():
            line = {"round": event.round, "kind": event.kind, "message": event.message}
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


def _log(event: Event) -> None:
    logger.log(event.level, "%s%s", f"round {event.round}: " if event.round else "", event.message)


_RECEIVER: ContextVar[Callable[[Event], None]] = ContextVar("receiver", default=_log)


@contextmanager
def _receiving(receive: Callable[[Event], None]) -> Iterator[None]:
    token = _RECEIVER.set(receive)
    try:
        yield
    finally:
        _RECEIVER.reset(token)
