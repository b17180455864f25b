"""Weights & Biases; ``WANDB_MODE=offline`` keeps everything on this machine until ``wandb sync``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from nestling.experiment.trackers.tracker import Tracker


class WeightsAndBiases(Tracker):
    """Log to Weights & Biases.

    Parameters
    ----------
    project
        The project; by default that of ``WANDB_PROJECT``, or else ``nestling``.
    options
        Any other arguments of ``wandb.init``.
    """

    name, package = "wandb", "wandb"

    def __init__(self, project: str | None = None, **options: Any) -> None:
        super().__init__()
        self._options = {"project": project or os.environ.get("WANDB_PROJECT", "nestling"), **options}

    def start(self, name: str, settings: Mapping[str, Any], identifier: str | None) -> str:
        """Start a run; with the identifier of an earlier one, its figures become part of that one."""
        options = {
            "name": name,
            "id": identifier,
            "resume": "allow",
            "config": dict(settings),
            "dir": None if self.folder is None else str(self.folder),
            "reinit": "create_new",  # several runs of one process
            "settings": self.library.Settings(console="off"),  # it must not capture progress bars
        }
        self._run = self.library.init(**(options | self._options))
        self._run.define_metric("round")
        self._run.define_metric("*", step_metric="round")
        return str(self._run.id)

    def log(self, round: int, figures: Mapping[str, float]) -> None:
        """Log the figures of a round."""
        self._run.log({"round": round, **figures})

    def finish(self, *, done: bool) -> None:
        """End the run; one that was stopped can be resumed."""
        self._run.finish(exit_code=0 if done else 1)
