"""Systems side by side: each is a program of its own that waits for its turn, so that their repeats can be interleaved.

A program says one line of JSON when it is ready, then one for every line that it reads: the seconds of a turn, by what
they were spent on. It ends when there is nothing more to read.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from bench.rounds.asleep import asleep
from nestling.errors import RunError

PATIENCE = 600.0  # seconds that a turn, or getting ready, may take
LAST_WORDS = 60.0  # seconds that a program may take to end
Turns = list[dict[str, float]]
Turn = Callable[[], dict[str, float]]


def own_voice() -> IO[str]:
    """Return what a program answers on, and let all else that it prints go to stderr."""
    voice = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return voice


def serve(turn: Turn, voice: IO[str]) -> None:
    """Take a turn for every line on stdin: the whole life of a program that takes part."""
    times: dict[str, Any] = {"ready": True}
    while _report(times, voice, sys.stdin):
        times = turn()


def _report(times: Mapping[str, Any], voice: IO[str], orders: IO[str]) -> bool:
    """Say something, wait for the next turn with everything else asleep, and return whether there is one."""
    with asleep():
        print(json.dumps(times), file=voice, flush=True)
        return bool(orders.readline())


class Laps:
    """Turns of a program whose rounds are in a loop that is not ours: `next` is called before the first and after each.

    >>> import io
    >>> asked, told = io.StringIO("turn"), io.StringIO()
    >>> laps = Laps(told, asked)
    >>> laps.next(), laps.next()
    (True, False)
    >>> [list(json.loads(line)) for line in told.getvalue().splitlines()]
    [['ready'], ['round']]
    """

    def __init__(self, voice: IO[str], orders: IO[str] | None = None) -> None:
        self._voice, self._orders = voice, orders or sys.stdin
        self._start: float | None = None

    def next(self) -> bool:
        """Say how long the round took, wait for the next turn, and return whether there is one."""
        times = {"ready": True} if self._start is None else {"round": time.perf_counter() - self._start}
        more = _report(times, self._voice, self._orders)
        self._start = time.perf_counter()
        return more


class Contestant:
    """A program that takes part.

    Parameters
    ----------
    command
        What to start.
    environment
        Variables on top of our own.
    folder
        Where to start it; by default, here.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None, folder: Path | None = None
    ) -> None:
        self._report = TemporaryFile()  # noqa: SIM115 - it lives as long as the program
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._report,
            text=True,
            env={**os.environ, **threads, "PYTHONPATH": _here(), **(environment or {})},
            start_new_session=True,
            cwd=folder,
        )

    def hear(self) -> dict[str, Any]:
        """Return what the program says next."""
        assert self._process.stdout is not None
        there, _, _ = select.select([self._process.stdout], [], [], PATIENCE)
        line = self._process.stdout.readline() if there else ""
        if not line:
            raise RunError(self._reason() if there else f"it said nothing for {PATIENCE:.0f} seconds")
        times: dict[str, Any] = json.loads(line)
        return times

    def turn(self) -> dict[str, float]:
        """Let the program take its turn."""
        assert self._process.stdin is not None
        try:
            print("turn", file=self._process.stdin, flush=True)
        except BrokenPipeError:
            raise RunError(self._reason()) from None
        return self.hear()

    def close(self) -> None:
        """End the program: it ends by itself, or is ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(LAST_WORDS)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)  # its own session, with all that it started
            self._process.wait()
        self._process.stdout.close()
        self._report.close()

    def _reason(self) -> str:
        self._report.seek(0)
        lines = self._report.read().decode(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else "it ended and said nothing"


def contest(contestants: Mapping[str, Contestant], repeats: int) -> dict[str, Turns | str]:
    """Let programs take turns, `repeats` times after one that does not count, and end them.

    Returns
    -------
    dict
        Name → the seconds that its turns tell, one after another; or the reason why it has none.
    """
    turns: dict[str, list[dict[str, float]]] = {name: [] for name in contestants}
    failed: dict[str, str] = {}

    def attempt(name: str, action: Callable[[], dict[str, Any]]) -> None:
        if name not in failed:
            try:
                turns[name].append(action())
            except RunError as problem:
                failed[name] = str(problem)

    try:
        for name, contestant in contestants.items():  # all are started, and get ready at once
            attempt(name, contestant.hear)
        for _ in range(1 + repeats):
            for name, contestant in contestants.items():
                attempt(name, contestant.turn)
    finally:
        for contestant in contestants.values():
            contestant.close()
    return {name: failed[name] if name in failed else times[2:] for name, times in turns.items()}


def _here() -> str:
    """Where our packages are, and what else Python was told to look through."""
    paths = [str(Path(__file__).parents[2]), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return os.pathsep.join(dict.fromkeys(paths))
