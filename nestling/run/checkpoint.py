"""Checkpoints: a run that is killed at any moment goes on from the last one as if nothing had happened.

A checkpoint is a folder ``checkpoints/round-000010`` with the server's tensors (safetensors) and its figures (JSON). It
is written beside its place, forced to disk, and renamed, so it is there whole or not at all; only then is the one
before the last removed.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import safetensors
import safetensors.torch
from torch import Tensor

from nestling.cut import Tally
from nestling.errors import RunError
from nestling.files import sync, write_whole
from nestling.run.private import Drawer
from nestling.run.server import Server
from nestling.run.setting import Setting

_KEEP = 2
_GROUPS = ("state", "memory", "coverage", "submodels", "notes")
_FORMAT = "nestling-checkpoint-2"


class _Figures(msgspec.Struct, forbid_unknown_fields=True):
    format: str
    round: int
    counts: dict[str, float]
    best: dict[str, Any]
    private: dict[int, str]
    memories: dict[int, str]


def write(folder: Path, server: Server) -> None:
    """Write the checkpoint of a server's round into a run directory."""
    place = folder / "checkpoints"
    place.mkdir(exist_ok=True)
    name = f"round-{server.round:06d}"
    if (place / name).is_dir():
        return
    draft = place / f".{name}"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    own = {f"{key}/{name}": tensor for key, held in server.submodels.items() for name, tensor in held.items()}
    held = (server.state, server.memory, server.coverage, own, server.notes)
    for group, tensors in zip(_GROUPS, held, strict=True):
        write_whole(draft / f"{group}.safetensors", safetensors.torch.save(_untied(tensors)))
    figures = _Figures(_FORMAT, server.round, server.counts, server.best, server.private.index, server.memories.index)
    write_whole(draft / "figures.json", msgspec.json.format(msgspec.json.encode(figures)))
    sync(draft)
    draft.rename(place / name)
    sync(place)
    for old in saved(folder)[:-_KEEP]:
        shutil.rmtree(old)
    server.private.tidy()
    server.memories.tidy()


def saved(folder: Path) -> list[Path]:
    """Return the checkpoints of a run directory, oldest first."""
    return sorted((folder / "checkpoints").glob("round-*"))


def read(folder: Path, setting: Setting, *, tidy: bool = True) -> Server | None:
    """Return the server of the last checkpoint in a run directory, or None where there is none.

    With `tidy`, clients' files that belong to no checkpoint any more are removed: for whoever will go on with the run.
    """
    found = saved(folder)
    if not found:
        return None
    place = found[-1]
    try:
        figures = msgspec.json.decode((place / "figures.json").read_bytes(), type=_Figures)
        groups = {group: safetensors.torch.load_file(place / f"{group}.safetensors") for group in _GROUPS}
    except (OSError, msgspec.DecodeError, safetensors.SafetensorError) as problem:
        raise RunError(f"the checkpoint {place} cannot be read: {str(problem).splitlines()[0]}") from None
    if figures.format != _FORMAT:
        raise RunError(f"the checkpoint {place} is of another kind ({figures.format!r}, not {_FORMAT!r})")
    state = {name: groups["state"][setting.axes.tied.get(name, name)] for name in setting.axes.dims}
    submodels: dict[str, dict[str, Tensor]] = {}
    for name, tensor in groups["submodels"].items():
        key, _, inside = name.partition("/")
        submodels.setdefault(key, {})[inside] = tensor
    private, memories = Drawer(folder / "private", figures.private), Drawer(folder / "memory", figures.memories)
    for drawer in (private, memories) if tidy else ():
        drawer.tidy()
    return Server(
        round=figures.round,
        state=state,
        memory=groups["memory"],
        submodels=submodels,
        private=private,
        memories=memories,
        notes=groups["notes"],
        coverage=groups["coverage"],
        counts={name: value if name == "simulated_seconds" else int(value) for name, value in figures.counts.items()},
        tally=Tally(setting.cut_axes, state),
        best=figures.best,
    )


def _untied(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors under the first of their names: a file cannot hold one twice."""
    seen: set[int] = set()
    result = {}
    for name, tensor in tensors.items():
        if tensor.numel() == 0 or tensor.data_ptr() not in seen:
            seen.add(tensor.data_ptr())
            result[name] = tensor.contiguous()
    return result
