"""`ProgressFile`: progress.json in the directory of a run that is going on, for `nestling watch`.

It holds what depends on the clock and so is not part of metrics.jsonl: who trains now, and how much time is left. It is
written at most once a second and removed when the run ends; after a kill it stays, and the next start replaces it.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nestling.experiment.directory import PROGRESS
from nestling.experiment.run_progress import RunProgress

_EVERY = 1.0  # seconds between two writes
_MAX_CLIENTS = 50  # that are listed by number
_DRAFT = f".{PROGRESS}.unsynced"  # named like other drafts, which the next start removes


class ProgressFile(RunProgress):
    """Writes progress.json.

    Parameters
    ----------
    folder
        The run directory; without one, nothing is written.
    """

    def __init__(self, folder: Path | None) -> None:
        super().__init__()
        self._writer = None if folder is None else ProgressWriter(folder)

    def update(self) -> None:
        """Write the file, now or within a second."""
        if self._writer is not None and self.time_left is not None:
            self._writer.write(self._content())

    def on_stop(self) -> None:
        """Remove the file."""
        if self._writer is not None:
            self._writer.close()

    def _content(self) -> dict[str, Any]:
        assert self.time_left is not None
        training, seconds = self.training, self.seconds_left
        done = Counter(job.who.level.name for job in training.done)
        levels = Counter(job.who.level.name for job in training.jobs)
        return {
            "name": self.name,
            "phase": self.phase,
            "round": self.round,
            "rounds": self.rounds,
            "share": round(self.time_left.share_done, 4),
            "seconds": round(self.time_left.elapsed, 1),
            "left": None if seconds is None else round(seconds, 1),
            "metric": {**asdict(self.metric), "value": self.value},
            "clients": {"jobs": len(training.jobs), "done": len(training.done), "training": len(training.now)},
            "levels": {name: {"jobs": count, "done": done[name]} for name, count in sorted(levels.items())},
            "training": [
                {"client": job.who.client, "level": job.who.level.name, "samples": job.who.samples}
                for job in training.now[:_MAX_CLIENTS]
            ],
        }


class ProgressWriter:
    """Writes the progress.json of a folder at most once a second; the last content is never left out.

    A client may train for minutes, so content that comes too early is written by a timer.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._content: Mapping[str, Any] = {}
        self._last = -_EVERY

    def write(self, content: Mapping[str, Any]) -> None:
        """Write the file, or leave that to a timer."""
        with self._lock:
            self._content = {**content, "updated": time.time()}
            wait = self._last + _EVERY - time.monotonic()
            if wait <= 0:
                self._write()
            elif self._timer is None:
                self._timer = threading.Timer(wait, self._late)
                self._timer.daemon = True
                self._timer.start()

    def close(self) -> None:
        """Remove the file."""
        with self._lock:
            timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
            timer.join()
        with suppress(OSError):  # the directory may have been removed meanwhile
            (self._folder / PROGRESS).unlink()

    def _late(self) -> None:
        with self._lock:
            if self._timer is not None:
                self._timer = None
                self._write()

    def _write(self) -> None:
        self._last = time.monotonic()
        whole = {**self._content, "process": os.getpid(), "host": socket.gethostname()}
        draft = self._folder / _DRAFT
        with suppress(OSError):  # on a full disk, the run itself fails at the next necessary write
            draft.write_bytes((json.dumps(whole) + "\n").encode())  # a power cut may lose it, so it needs no fsync
            draft.replace(self._folder / PROGRESS)


def read_progress(folder: Path) -> dict[str, Any] | None:
    """Return the progress.json of a run that is going on; None if there is none, or its process has ended.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as name:
    ...     ProgressWriter(Path(name)).write({"share": 0.5})
    ...     read_progress(Path(name))["share"], read_progress(Path(name, "other"))
    (0.5, None)
    """
    try:
        content = json.loads((folder / PROGRESS).read_bytes())
    except (OSError, ValueError):
        return None
    if not isinstance(content, dict) or not isinstance(content.get("process"), int):
        return None
    return content if content.get("host") != socket.gethostname() or _alive(content["process"]) else None


def _alive(process: int) -> bool:
    """Return whether a process of this machine exists; on Windows that cannot be asked without ending it."""
    if sys.platform == "win32":
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # of another user
        return True
    return True
