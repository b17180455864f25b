"""TensorBoard: events in DIR/tensorboard."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nestling.errors import ConfigError
from nestling.experiment.trackers.tracker import Tracker


class TensorBoard(Tracker):
    """Write the figures of every round as events.

    Parameters
    ----------
    logdir
        The folder of the events; by default ``tensorboard`` in the run directory.
    """

    name, package, every_round = "tensorboard", "tensorboard", True

    def __init__(self, logdir: str | Path | None = None) -> None:
        super().__init__()
        self._logdir = logdir

    def start(self, name: str, settings: Mapping[str, Any], identifier: str | None) -> None:
        """Open the writer, now that the run directory exists."""
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 (an extra)

        if self._logdir is None and self.folder is None:
            raise ConfigError(
                "TensorBoard needs a folder: give the run a directory (out=…), or use TensorBoard(logdir)"
            )
        self._writer = SummaryWriter(str(self._logdir or Path(self.folder or ".", "tensorboard")))
        self._writer.add_text("settings", f"```\n{json.dumps(settings, indent=2)}\n```")

    def log(self, round: int, figures: Mapping[str, float]) -> None:
        """Write the figures of a round."""
        for name, value in figures.items():
            self._writer.add_scalar(name, value, round)
        self._writer.flush()

    def finish(self, *, done: bool) -> None:
        """Close the file."""
        self._writer.close()
