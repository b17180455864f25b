"""`RunProgress`: what a run does now; a progress bar, lines and progress.json show it in their ways."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nestling.amounts import BYTES, amount
from nestling.experiment.callback import Callback, Training
from nestling.experiment.record import title
from nestling.experiment.simulation import Simulation
from nestling.experiment.time_left import TimeLeft
from nestling.server.state import ServerState
from nestling.tasks import Metric


class RunProgress(Callback):
    """Follows a run; `update` is called whenever something changes.

    Attributes
    ----------
    name
        The name of the experiment; empty before the run has started.
    phase
        What goes on: ``"reading data"``, ``"starting workers"``, ``"training"``, ``"testing"`` or ``"saving"``.
    round, rounds
        The number of rounds that are done, and of all.
    training
        The clients of the round that is going on.
    time_left
        The estimate of the time that is left; None before the run has started.
    metric, value
        The task's first metric, and its last value for the global model.
    """

    def __init__(self) -> None:
        self.name, self.phase = "", "starting"
        self.round = self.rounds = 0
        self.training = Training(())
        self.time_left: TimeLeft | None = None
        self.metric = Metric("accuracy", "higher", percent=True)
        self.value: float | None = None
        self._loss: float | None = None
        self._bytes = 0
        self._privacy: dict[str, Any] = {}

    def update(self) -> None:
        """Show what has changed."""

    @property
    def seconds_left(self) -> float | None:
        """An estimate of the seconds that are left; None before the first client is done."""
        return None if self.time_left is None else self.time_left.seconds()

    @property
    def figures(self) -> str:
        """The last loss, the last value of the metric, and the ε and bytes spent so far, as text."""
        parts = [] if self._loss is None else [f"loss {self._loss:.3f}"]
        parts += [] if self.value is None else [format_value(self.metric, self.value)]
        parts += [format_epsilon(self._privacy)] if self._privacy else []
        return " · ".join([*parts, *([f"{amount(self._bytes, BYTES)} sent"] if self._bytes else [])])

    def on_phase(self, phase: str) -> None:
        """Show what is waited for."""
        self.phase = phase
        self.update()

    def on_start(self, simulation: Simulation, state: ServerState) -> None:
        """Show the rounds done and to do."""
        settings = simulation.settings
        self.name, self.metric = title(settings), simulation.setup.task.metrics[0]
        self.round, self.rounds = state.round, settings.rounds
        self.phase = "starting workers" if settings.workers > 1 or settings.engine == "ray" else "training"
        self.time_left = TimeLeft(simulation, state.round)
        self.update()

    def on_training(self, training: Training) -> None:
        """Show who trains, and how many are done."""
        self.training = training
        if training.done or not training.jobs:
            self.phase = "training"
        if self.time_left is not None:
            self.time_left.on_training(training)
        self.update()

    def on_evaluation(self) -> None:
        """Show that models are tested."""
        self.phase = "testing"
        if self.time_left is not None:
            self.time_left.on_evaluation()
        self.update()

    def on_round(self, record: dict[str, Any], state: ServerState) -> None:
        """Show the figures of a round."""
        figures = record.get("evaluation", {})
        value = figures.get(f"global_{self.metric.name}", figures.get(self.metric.name))
        self.value = self.value if value is None else value
        self._loss, self._bytes = record["train_loss"], record["bytes_down"] + record["bytes_up"]
        self._privacy = record.get("privacy", {})
        self.round, self.phase, self.training = record["round"], "training", Training(())
        if self.time_left is not None:
            self.time_left.on_round()
        self.update()


def format_value(metric: Metric, value: float) -> str:
    """Return a metric with its value.

    >>> format_value(Metric("accuracy", "higher", percent=True), 0.5), format_value(Metric("rmse", "lower"), 1.23456)
    ('accuracy 50.0%', 'rmse 1.235')
    """
    return f"{metric.name} {value:.1%}" if metric.percent else f"{metric.name} {value:.4g}"


def format_epsilon(privacy: Mapping[str, Any]) -> str:
    """Return what rounds with differential privacy have cost so far.

    >>> format_epsilon({"epsilon": 3.14159}), format_epsilon({"epsilon": None})
    ('ε 3.14', 'ε ∞')
    """
    return "ε ∞" if privacy["epsilon"] is None else f"ε {privacy['epsilon']:.3g}"
