"""Messages of the logger ``nestling`` as lines on stderr."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class _Lines(logging.Handler):
    """Writes one line per message to the current stderr, which a progress bar may have replaced."""

    def emit(self, record: logging.LogRecord) -> None:
        text = " ".join(record.getMessage().split())
        with suppress(OSError):  # a closed terminal must not end a run; events.jsonl holds the message, too
            sys.stderr.write(f"{record.levelname.lower()}: {text}\n")
            sys.stderr.flush()


@contextmanager
def shown(verbose: bool) -> Iterator[None]:
    """Print warnings of the logger ``nestling`` inside this context; with `verbose`, its other messages, too."""
    logger, lines = logging.getLogger("nestling"), _Lines(logging.INFO if verbose else logging.WARNING)
    before = logger.level
    logger.addHandler(lines)
    if verbose:
        logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(lines)
        logger.setLevel(before)
