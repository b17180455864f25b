"""What a run shows while it runs: a progress bar on the terminal, TensorBoard where it is asked for."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from nestling.amounts import BYTES, amount
from nestling.cli.screen import err
from nestling.errors import NestlingError

if TYPE_CHECKING:
    from nestling.experiment.server import Server
    from nestling.experiment.setting import Setting


class Bar:
    """A progress bar with accuracy or perplexity, bytes sent, and the time left; nothing without a terminal."""

    def __init__(self, label: str) -> None:
        from rich import progress  # noqa: PLC0415

        self._label = label
        self._progress = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TextColumn("{task.fields[figures]}"),
            progress.TimeElapsedColumn(),
            progress.TextColumn("left"),
            progress.TimeRemainingColumn(),
            console=err(),
            transient=True,
            disable=not sys.stderr.isatty(),
        )
        self._task = self._progress.add_task(label, total=None, figures="starting")
        self._clients = 0
        self._figures = ""
        self._measured = ""

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def start(self, made: Setting, server: Server) -> None:
        """Show how far a run is, and how far it goes; and what it took of a file of weights."""
        if made.started:
            err().print(made.started, soft_wrap=True)
        self._progress.update(self._task, total=made.experiment.rounds, completed=server.round, figures="")

    def job(self) -> None:
        """Count a client."""
        self._clients += 1
        self._progress.update(self._task, figures=f"{self._figures} · client {self._clients}".lstrip(" ·"))

    def testing(self) -> None:
        """Say that clients are done and models are tested."""
        self._progress.update(self._task, figures=f"{self._figures} · testing".lstrip(" ·"))

    def round(self, told: dict[str, Any]) -> None:
        """Show the figures of a round."""
        self._clients = 0
        parts = []
        if told["train_loss"] is not None:
            parts.append(f"loss {told['train_loss']:.3f}")
        for name, style in (("perplexity", ".4g"), ("global_accuracy", ".1%")):  # the last that is there is shown
            value = told.get("evaluation", {}).get(name)
            if value is not None:
                self._measured = f"{name.removeprefix('global_')} {value:{style}}"
        parts.append(self._measured)
        parts.append(f"{amount(told['bytes_down'] + told['bytes_up'], BYTES)} sent")
        self._figures = " · ".join(filter(None, parts))
        self._progress.update(self._task, completed=told["round"], figures=self._figures)


class TensorBoard:
    """Writes every round's figures where TensorBoard finds them."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415
        except ImportError:
            raise NestlingError("--tensorboard needs TensorBoard: pip install 'nestling[tensorboard]'") from None
        self._make = lambda: SummaryWriter(str(folder))

    def start(self, made: Setting, server: Server) -> None:
        """Begin to write, now that the run has its directory."""
        self._writer = self._make()

    def job(self) -> None:
        """Clients are not written one by one."""

    def testing(self) -> None:
        """Nothing to write yet."""

    def round(self, told: dict[str, Any]) -> None:
        """Write the figures of a round."""
        for name, value in _flat(told):
            self._writer.add_scalar(name, value, told["round"])
        self._writer.flush()


class Several:
    """Passes on to several watchers."""

    def __init__(self, watchers: Sequence[Any]) -> None:
        self._watchers = watchers

    def start(self, made: Setting, server: Server) -> None:
        """Pass on."""
        for watcher in self._watchers:
            watcher.start(made, server)

    def job(self) -> None:
        """Pass on."""
        for watcher in self._watchers:
            watcher.job()

    def testing(self) -> None:
        """Pass on."""
        for watcher in self._watchers:
            watcher.testing()

    def round(self, told: dict[str, Any]) -> None:
        """Pass on."""
        for watcher in self._watchers:
            watcher.round(told)


def _flat(told: dict[str, Any], path: str = "") -> list[tuple[str, float]]:
    found = []
    for name, value in told.items():
        if isinstance(value, dict):
            found += _flat(value, f"{path}{name}/")
        elif isinstance(value, int | float):
            found.append((f"{path}{name}", value))
    return found
