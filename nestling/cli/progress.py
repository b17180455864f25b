"""Progress bars: two lines that fit 80 columns, with how far it is and how long it takes above what is going on."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import TracebackType

from rich import progress
from rich.console import Group, RenderableType
from rich.text import Text

from nestling.cli.screen import err
from nestling.experiment.run_progress import RunProgress
from nestling.experiment.simulation import Simulation
from nestling.server.state import ServerState

_BAR = 16  # columns
_BESIDE = 54  # columns that are left for the bar, a count such as 1000/1000 and two times
_MIN_LABEL = 12


class TwoLineProgress(progress.Progress):
    """A bar on stderr, with a count and times beside it and a line of text below; hidden without a terminal.

    Tasks have the fields ``count`` and ``text``, and ``end``: when they will be done, by the clock of the bar.
    """

    def __init__(self) -> None:
        super().__init__(
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(bar_width=_BAR),
            progress.TextColumn("{task.fields[count]}", markup=False),
            _Times(),
            console=err(),
            transient=True,
            disable=not sys.stderr.isatty(),
        )

    def add(self, label: str) -> progress.TaskID:
        """Add a task; its label is shortened so that the rest fits."""
        most = max(_MIN_LABEL, self.console.width - _BESIDE)
        label = label if len(label) <= most else f"{label[: most - 1]}…"
        return self.add_task(label, total=None, count="", text="", end=None)

    def estimate(self, task: progress.TaskID, seconds: float | None) -> None:
        """Show how many seconds are left."""
        self.update(task, end=None if seconds is None else self.get_time() + seconds)

    def get_renderables(self) -> Iterable[RenderableType]:
        """Return the bar, and the text below it, which is cut at the width of the terminal."""
        yield self.make_tasks_table(self.tasks)
        texts = [task.fields["text"] for task in self.tasks]
        yield Group(*(Text(text, style="dim", no_wrap=True, overflow="ellipsis") for text in texts if text))


class _Times(progress.ProgressColumn):
    """The time that has passed, and the time that is left."""

    def render(self, task: progress.Task) -> Text:
        passed = _clock(task.finished_time if task.finished else task.elapsed or 0.0)
        end = task.fields["end"]
        left = "" if end is None else f", {_clock(max(0.0, end - task.get_time()))} left"
        return Text(f"{passed}{left}", no_wrap=True)


def _clock(seconds: float | None) -> str:
    """Return a time as a clock shows it.

    >>> _clock(75), _clock(7330)
    ('1:15', '2:02:10')
    """
    minutes, second = divmod(int(seconds or 0), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


class ProgressBar(RunProgress):
    """A progress bar of a run: rounds and time left, the last figures, and what is waited for."""

    def __init__(self, label: str) -> None:
        super().__init__()
        self._progress = TwoLineProgress()
        self._task = self._progress.add(label)

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
        super().on_start(simulation, state)

    def update(self) -> None:
        """Show what has changed."""
        training = self.training
        doing = f"{self.phase} client {len(training.done) + 1} of {len(training.jobs)}"
        if self.phase != "training" or len(training.done) >= len(training.jobs):
            doing = "merging" if self.phase == "training" and training.jobs else self.phase
        text = " · ".join(filter(None, [doing, self.figures]))
        if self.time_left is None:
            self._progress.update(self._task, text=text)
            return
        count, done = f"{self.round}/{self.rounds}", self.time_left.share_done
        self._progress.update(self._task, total=1.0, completed=done, count=count, text=text)
        self._progress.estimate(self._task, self.seconds_left)
