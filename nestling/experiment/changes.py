"""Settings that may change when a run is resumed: those that cannot change its numbers, and the number of rounds.

More rounds give the bytes of one long run if nothing depends on their number: neither the learning rate (``constant``
and ``steps`` do not), nor what the method's server does between rounds.
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import msgspec

from nestling.errors import RunError
from nestling.methods import Method
from nestling.settings import Experiment
from nestling.settings.overrides import flattened

HARMLESS = frozenset({"name", "workers", "engine", "address", "worker_timeout", "checkpoint_every", "data.dir"})


def changed_settings(began: Experiment, now: Experiment) -> dict[str, tuple[Any, Any]]:
    """Return the settings in which two experiments differ: dotted name → value of the first, value of the second.

    >>> changed_settings(Experiment(seed=1), Experiment().with_settings(["fleet.clients=5", "fleet.per_round=5"]))
    {'seed': (1, 0), 'fleet.clients': (100, 5), 'fleet.per_round': (10, 5)}
    """
    before, after = flattened(msgspec.to_builtins(began)), flattened(msgspec.to_builtins(now))
    pairs = {key: (before.get(key), after.get(key)) for key in before | after}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def check_settings(folder: Path, began: Experiment, now: Experiment) -> None:
    """Raise if settings differ that must not change in a run; `check_rounds` checks the number of rounds."""
    changed = {key: pair for key, pair in changed_settings(began, now).items() if key not in HARMLESS | {"rounds"}}
    if changed:
        differences = ", ".join(
            f"{key} is {_short(after)} and was {_short(before)}" for key, (before, after) in changed.items()
        )
        raise RunError(
            f"{str(folder)!r} cannot go on with other settings than it began with ({differences}): put them back, or "
            f"start another run; only rounds, {', '.join(sorted(HARMLESS))} may change"
        )


def check_rounds(began: Experiment, now: Experiment, method: Method, done: int) -> None:
    """Raise if the number of rounds was changed and cannot be, after `done` rounds."""
    if now.rounds == began.rounds:
        return
    reason = ""
    if now.local.schedule == "cosine":
        reason = "with local.schedule=cosine the learning rate of every round depends on their number"
    elif not method.extendable:
        reason = f"what {method.name} does between rounds depends on their number"
    elif now.rounds < done:
        reason = f"{done} rounds are done"
    if reason:
        raise RunError(f"rounds cannot be {now.rounds}, as the run began with {began.rounds}: {reason}")


def _short(value: Any) -> str:
    return "not set" if value is None else textwrap.shorten(repr(value), 60, placeholder="…")
