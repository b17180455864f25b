"""What the logger ``nestling`` says, as lines on stderr."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class _Lines(logging.Handler):
    """Writes one line per message to whatever stderr is now: a progress bar puts itself between and stays below."""

    def emit(self, record: logging.LogRecord) -> None:
        text = " ".join(record.getMessage().split())
        with suppress(OSError):  # the terminal may be gone, which must not end a run; it is in events.jsonl too
            sys.stderr.write(f"{record.levelname.lower()}: {text}\n")
            sys.stderr.flush()


@contextmanager
def shown(verbose: bool) -> Iterator[None]:
    """Show warnings of the logger ``nestling``, and with `verbose` what else it says, while this lasts."""
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
