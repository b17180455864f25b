"""Events: what went differently than planned without stopping a run, such as a lost worker or a slower fallback.

Code anywhere calls `report`. The event goes to whoever collects in this context: the `EventLog` of a run, which logs
it and keeps it in the run directory, or `collect` in a worker process, whose events travel back with its reply. Where
nobody collects, it goes to the logger ``nestling`` directly.
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
    count
        How often it happened, where one message tells of several, such as the clients that missed a deadline.
    """

    kind: str
    message: str
    level: int = logging.WARNING
    round: int = 0
    count: int = 1


def report(kind: str, message: str, level: int = logging.WARNING, count: int = 1) -> None:
    """Tell that something happened, once or `count` times.

    >>> with collect() as events:
    ...     report("worker lost", "worker 3 ended with exit code -9; its job is given to another")
    >>> events[0].kind
    'worker lost'
    """
    forward([Event(kind, message, level, count=count)])


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
        The run directory; None keeps nothing on disk, until `open` is called.

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
        self._early: list[Event] = []  # those that came before there was a directory
        self._counts: Counter[tuple[str, int]] = Counter()
        self._logged: set[tuple[str, int]] = set()
        self.round = 0

    @contextmanager
    def active(self) -> Iterator[EventLog]:
        """Receive the events of this context."""
        with _receiving(self._receive):
            yield self

    def open(self, folder: Path, done: int) -> None:
        """Keep events in a run directory from now on, with those received so far and those of its first rounds.

        Parameters
        ----------
        folder
            The run directory.
        done
            Rounds that its checkpoint holds: events of later rounds are removed, as these will be played again.
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
        """Return how often each kind of event happened, in alphabetical order; only those of a level or above."""
        totals: Counter[str] = Counter()
        for (kind, of), count in self._counts.items():
            totals[kind] += count if of >= level else 0
        return {kind: count for kind, count in sorted(totals.items()) if count}

    def _receive(self, event: Event) -> None:
        event = replace(event, round=self.round)
        self._counts[event.kind, event.level] += event.count
        again = (event.kind, event.round) in self._logged
        self._logged.add((event.kind, event.round))
        _log(replace(event, level=logging.DEBUG) if again else event)
        if self._path is None:
            self._early.append(event)
        elif self._path.parent.is_dir():
            # where the disk is full, it is logged at least, and the run fails where it must write
            with suppress(OSError), self._path.open("a", encoding="utf-8") as file:
                file.write(_line(event))


def totals_of(folder: Path, level: int = 0) -> dict[str, int]:
    """Return how often each kind of event happened in the run of a directory, as far as it is kept there."""
    log = EventLog(None)
    for event in _read(folder / "events.jsonl"):
        log._counts[event.kind, event.level] += event.count
    return log.totals(level)


def in_words(totals: Mapping[str, int]) -> str:
    """Return totals as a part of a sentence; kinds are a noun and what became of it.

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
    """Return the events in a file; what is not a whole line of ours was cut off by a kill, or is nobody's."""
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
