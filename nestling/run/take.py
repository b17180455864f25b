"""A trained sub-model, taken out of a run and used alone."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from nestling.cut import submodel
from nestling.engines import LocalEngine
from nestling.errors import RunError, nearest
from nestling.run import checkpoint
from nestling.run.config import from_file
from nestling.run.evaluate import ready
from nestling.run.setting import Blueprint, setting
from nestling.run.workshop import Workshop


def take(out: str | Path, level: str = "full", **own: Any) -> nn.Module:
    """Return the sub-model of a level as its run left it: a plain module in evaluation mode.

    Parameters
    ----------
    out
        The directory of the run.
    level
        The name of one of its levels, or ``"full"`` for the whole model.
    own
        The model, dataset, partition or method of your own that the run was given.
    """
    folder = Path(out)
    if not (folder / "config.toml").is_file():
        raise RunError(f"{str(folder)!r} is not a run directory: it holds no config.toml")
    made = setting(Blueprint(from_file(folder / "config.toml"), **own))
    server = checkpoint.read(folder, made)
    if server is None:
        raise RunError(f"{str(folder)!r} holds no checkpoint yet: no round is done")
    if level != "full" and level not in made.levels:
        raise RunError(f"the run has no level {level!r}{nearest(level, ['full', *made.levels])}")
    full = made.whole(server.notes)
    plan = full if level == "full" else made.submodel(made.levels[level], server.notes)
    given = server.given(made, full) if plan == full else {}
    state = ready(made, server, LocalEngine(partial(Workshop, made)), [plan], given)[plan]
    model = submodel(made.model, made.axes, plan)
    model.load_state_dict(state)
    return model.eval()
