"""Events: incidents that do not stop a run, such as a lost worker or a slower fallback.

Any code may call `report`. The event goes to the receiver of the current context: the `EventLog` of a run, which logs
it and writes it to the run directory, or `collect` in a worker process, whose events are sent back with its reply.
Without a receiver, it goes to the logger ``nestling``.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path

from nestling.files import write_whole

logger = logging.getLogger("nestling")


@dataclass(frozen=True)
class Event:
    """One incident.

    Attributes
    ----------
    kind
        The kind of incident, in a few fixed words, such as ``"worker lost"``.
    message
        A sentence for the user: what happened, why, and what was done about it.
    level
        A level of `logging`: ``WARNING`` for what users should see, ``INFO`` for what ``--verbose`` shows.
    round
        The round in which it happened, set by the run's log; 0 before the first round.
    count
        The number of incidents that one message describes, such as clients that missed a deadline.
    """

    kind: str
    message: str
    level: int = logging.WARNING
    round: int = 0
    count: int = 1


def report(kind: str, message: str, level: int = logging.WARNING, count: int = 1) -> None:
    """Report an incident, or `count` of them.

    >>> with collect() as events:
    ...     report("worker lost", "worker 3 ended with exit code -9; its job is given to another")
    >>> events[0].kind
    'worker lost'
    """
    forward([Event(kind, message, level, count=count)])


def forward(events: Iterable[Event]) -> None:
    """Pass events, such as those of a worker process, to the receiver of this context."""
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
    """The events of one run: each kind is logged once per round, counted, and written to ``events.jsonl``.

    Parameters
    ----------
    folder
        The run directory; with None, nothing is written until `open` is called.

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
        self._early: list[Event] = []  # events before there is a directory
        self._counts: Counter[tuple[str, int]] = Counter()
        self._logged: set[tuple[str, int]] = set()
        self._outer: Callable[[Event], None] = _log  # the receiver outside of `active`
        self.round = 0

    @contextmanager
    def active(self) -> Iterator[EventLog]:
        """Receive the events of this context, and pass them on to the outer receiver or the logger."""
        self._outer = _RECEIVER.get()
        with _receiving(self._receive):
            yield self

    def open(self, folder: Path, done: int) -> None:
        """Write events to a run directory from now on, including those received so far.

        Parameters
        ----------
        folder
            The run directory.
        done
            The number of rounds in its checkpoint: events of later rounds are removed, as these will be run again.
        """
        self._path, self.round = folder / "events.jsonl", done
        kept = [event for event in _read(self._path) if event.round <= done]
        early = [replace(event, round=done) for event in self._early]
        for event in kept:
            self._counts[event.kind, event.level] += event.count
        if kept or early or self._path.exists():
            write_whole(self._path, "".join(map(_line, [*kept, *early])).encode())
        self._early.clear()

    def totals(self, level: int = 0) -> dict[str, int]:
        """Return the number of events of each kind of at least this level, in alphabetical order."""
        totals: Counter[str] = Counter()
        for (kind, own_level), count in self._counts.items():
            totals[kind] += count if own_level >= level else 0
        return {kind: count for kind, count in sorted(totals.items()) if count}

    def _receive(self, event: Event) -> None:
        event = replace(event, round=self.round)
        self._counts[event.kind, event.level] += event.count
        again = (event.kind, event.round) in self._logged
        self._logged.add((event.kind, event.round))
        self._outer(replace(event, level=logging.DEBUG) if again else event)
        if self._path is None:
            self._early.append(event)
        elif self._path.parent.is_dir():
            # on a full disk, the event is at least logged, and the run fails at the next necessary write
            with suppress(OSError), self._path.open("a", encoding="utf-8") as file:
                file.write(_line(event))


def totals_of(folder: Path, level: int = 0) -> dict[str, int]:
    """Return the number of events of each kind in the ``events.jsonl`` of a run directory."""
    log = EventLog(None)
    for event in _read(folder / "events.jsonl"):
        log._counts[event.kind, event.level] += event.count
    return log.totals(level)


def in_words(totals: Mapping[str, int]) -> str:
    """Return totals as text; a kind is a noun and what happened to it.

    >>> in_words({"client dropped": 1, "worker lost": 2})
    '1 client dropped, 2 workers lost'
    """
    parts = []
    for kind, count in totals.items():
        noun, space, rest = kind.partition(" ")
        parts.append(f"{count} {noun}{'s' if count > 1 else ''}{space}{rest}")
    return ", ".join(parts)


def _line(event: Event) -> str:
    fields = {"round": event.round, "kind": event.kind, "level": logging.getLevelName(event.level)}
    return json.dumps({**fields, "count": event.count, "message": event.message}) + "\n"


def _read(path: Path) -> list[Event]:
    """Return the events in a file; lines that are invalid, such as one truncated by a kill, are skipped."""
    events = []
    for line in path.read_bytes().splitlines() if path.is_file() else ():
        try:
            read = json.loads(line)
            level = logging.getLevelNamesMapping()[read["level"]]
            events.append(Event(str(read["kind"]), str(read["message"]), level, int(read["round"]), int(read["count"])))
        except (ValueError, TypeError, LookupError):
            continue
    return events


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
