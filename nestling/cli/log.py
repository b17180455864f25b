"""Messages of the logger ``nestling`` as lines on stderr."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class _StderrHandler(logging.Handler):
    """Write one line per message to the current stderr, which a progress bar may have replaced."""

    def emit(self, record: logging.LogRecord) -> None:
        text = " ".join(record.getMessage().split())
        with suppress(OSError):  # a closed terminal must not end a run; events.jsonl holds the message, too
            sys.stderr.write(f"{record.levelname.lower()}: {text}\n")
            sys.stderr.flush()


@contextmanager
def log_to_stderr(verbose: bool) -> Iterator[None]:
    """Print warnings of the logger ``nestling`` inside this context; with `verbose`, informational messages, too."""
    logger, handler = logging.getLogger("nestling"), _StderrHandler(logging.INFO if verbose else logging.WARNING)
    level_before = logger.level
    logger.addHandler(handler)
    if verbose:
        logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level_before)
