"""The progress of a run: a bar on the terminal, and TensorBoard if requested."""

from __future__ import annotations

import sys
from pathlib import Path
from types import TracebackType
from typing import Any

from rich import progress

from nestling.amounts import BYTES, amount
from nestling.cli.screen import err
from nestling.errors import NestlingError
from nestling.experiment.callback import Callback
from nestling.experiment.simulation import Simulation
from nestling.server.state import ServerState
from nestling.tasks import Metric


def make_progress(*columns: progress.ProgressColumn) -> progress.Progress:
    """Return a progress bar on stderr with `columns` between the bar and the times; it is hidden without a terminal."""
    return progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        *columns,
        progress.TimeElapsedColumn(),
        progress.TextColumn("left"),
        progress.TimeRemainingColumn(),
        console=err(),
        transient=True,
        disable=not sys.stderr.isatty(),
    )


class ProgressBar(Callback):
    """A progress bar with the task's first metric, bytes sent, and the time left; nothing without a terminal."""

    def __init__(self, label: str) -> None:
        self._progress = make_progress(progress.MofNCompleteColumn(), progress.TextColumn("{task.fields[figures]}"))
        self._task = self._progress.add_task(label, total=None, figures="starting")
        self._metric = Metric("accuracy", "higher", percent=True)
        self._clients = 0
        self._figures = ""
        self._measured = ""

    def __enter__(self) -> ProgressBar:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def on_start(self, simulation: Simulation, state: ServerState) -> None:
        """Show the rounds done and to do, and which tensors were loaded from a file of weights."""
        if simulation.started:
            err().print(simulation.started, soft_wrap=True)
        self._metric = simulation.setup.task.metrics[0]
        self._progress.update(self._task, total=simulation.settings.rounds, completed=state.round, figures="")

    def on_client(self) -> None:
        """Count a client."""
        self._clients += 1
        self._progress.update(self._task, figures=f"{self._figures} · client {self._clients}".lstrip(" ·"))

    def on_evaluation(self) -> None:
        """Show that models are tested."""
        self._progress.update(self._task, figures=f"{self._figures} · testing".lstrip(" ·"))

    def on_round(self, record: dict[str, Any], state: ServerState) -> None:
        """Show the figures of a round."""
        self._clients = 0
        parts = [] if record["train_loss"] is None else [f"loss {record['train_loss']:.3f}"]
        figures, name = record.get("evaluation", {}), self._metric.name
        value = figures.get(f"global_{name}", figures.get(name))
        if value is not None:
            self._measured = f"{name} {value:.1%}" if self._metric.percent else f"{name} {value:.4g}"
        parts += [self._measured, f"{amount(record['bytes_down'] + record['bytes_up'], BYTES)} sent"]
        self._figures = " · ".join(filter(None, parts))
        self._progress.update(self._task, completed=record["round"], figures=self._figures)


class TensorBoard(Callback):
    """Write the figures of every round as TensorBoard events into a folder."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415
        except ImportError:
            raise NestlingError("--tensorboard needs TensorBoard: pip install 'nestling[tensorboard]'") from None
        self._make = lambda: SummaryWriter(str(folder))

    def on_start(self, simulation: Simulation, state: ServerState) -> None:
        """Open the writer, now that the directory of the run exists."""
        self._writer = self._make()

    def on_round(self, record: dict[str, Any], state: ServerState) -> None:
        """Write the figures of a round."""
        for name, value in _flat(record):
            self._writer.add_scalar(name, value, record["round"])
        self._writer.flush()


def _flat(record: dict[str, Any], path: str = "") -> list[tuple[str, float]]:
    figures = []
    for name, value in record.items():
        if isinstance(value, dict):
            figures += _flat(value, f"{path}{name}/")
        elif isinstance(value, int | float):
            figures.append((f"{path}{name}", value))
    return figures
