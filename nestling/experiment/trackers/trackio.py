"""Trackio: a database on this machine, which ``trackio show`` opens in the browser."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from typing import Any

from nestling.experiment.trackers.tracker import Tracker


class Trackio(Tracker):
    """Log to Trackio.

    Parameters
    ----------
    project
        The project; by default that of ``TRACKIO_PROJECT``, or else ``nestling``.
    options
        Any other arguments of ``trackio.init``.
    """

    name, package = "trackio", "trackio"

    def __init__(self, project: str | None = None, **options: Any) -> None:
        super().__init__()
        self._options = {"project": project or os.environ.get("TRACKIO_PROJECT", "nestling"), **options}

    def start(self, name: str, settings: Mapping[str, Any], identifier: str | None) -> str:
        """Start a run, or continue the one of this name."""
        run_name = identifier or f"{name}-{secrets.token_hex(3)}"
        options = {"name": run_name, "config": dict(settings), "resume": "allow", "embed": False}
        self._run = self.library.init(**(options | self._options))
        return run_name

    def log(self, round: int, figures: Mapping[str, float]) -> None:
        """Log the figures of a round."""
        self._run.log(dict(figures), step=round)

    def finish(self, *, done: bool) -> None:
        """Wait until everything is stored."""
        self._run.finish()
