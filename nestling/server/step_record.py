"""What a step of the server leaves: the state after it, and the line in metrics.jsonl."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nestling.events import report
from nestling.methods.context import Participant
from nestling.methods.messages import Progress, TrainJob
from nestling.server.cost_meter import CostMeter
from nestling.server.state import ServerState


@dataclass(frozen=True, eq=False)
class Stepped:
    """The result of merging updates and of the server's step.

    Attributes
    ----------
    after
        The state after it.
    clients
        The number of clients whose updates were merged.
    progress
        The sums of their training.
    figures
        What the method and the merge rule record.
    """

    after: ServerState
    clients: int
    progress: Progress
    figures: Mapping[str, Any]

    def line(
        self, costs: CostMeter, lr: float, trained: Sequence[Participant], *, dropped: int, **more: Any
    ) -> dict[str, Any]:
        """Return the line that is recorded; of `more`, values that are None are left out."""
        return {
            "round": self.after.round,
            "clients": self.clients,
            "dropped": dropped,
            "lr": lr,
            "train_loss": self.progress.mean_loss,
            "train_accuracy": self.progress.accuracy,
            **costs.recorded(self.after.totals),
            "levels": dict(sorted(Counter(who.level.name for who in trained).items())),
            **{name: value for name, value in more.items() if value is not None},
            **self.figures,
        }


def report_absent(participants: Sequence[Participant], able: Sequence[Participant], jobs: Sequence[TrainJob]) -> None:
    """Report clients without samples, and a round in which nobody trains."""
    empty, drawn = len(participants) - len(able), len(participants)
    if empty:
        report("client without samples", f"{empty} of {drawn} clients have no samples: skipped", logging.INFO)
    if not jobs:
        reason = "all are past the deadline" if able else "none of those drawn has samples"
        reason = reason if participants else "none of those drawn is online"
        report("round without clients", f"nobody takes part ({reason}): no update merges")
