"""The callbacks of a run: progress.json, lines of progress, trackers, and the user's own."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from nestling.experiment.callback import Callback, Callbacks
from nestling.experiment.progress_file import ProgressFile
from nestling.experiment.progress_lines import ProgressLines
from nestling.experiment.trackers import Tracker, make_tracker


def run_callbacks(
    own: Iterable[Callback], track: str | Tracker | Iterable[str | Tracker], folder: Path | None, *, quiet: bool
) -> Callbacks:
    """Return all callbacks of a run as one; raise if a tracker does not exist or is not installed.

    Parameters
    ----------
    own
        The user's own, which are called last.
    track
        Trackers, or their names.
    folder
        The run directory, if there is one.
    quiet
        Whether to print no lines.
    """
    chosen = [track] if isinstance(track, str | Tracker) else list(track)
    trackers = [make_tracker(one) if isinstance(one, str) else one for one in chosen]
    for one in trackers:
        one.folder = folder
    return Callbacks([ProgressFile(folder), *([] if quiet else [ProgressLines()]), *trackers, *own])
