"""Checkpoints: a run that is killed at any moment goes on from the last one as if nothing had happened.

A checkpoint is a folder ``checkpoints/round-000010`` with the server's tensors (safetensors), its figures (JSON) and
SHA256SUMS, which holds the checksums of all files that belong to it, those of single clients included: ``sha256sum -c
SHA256SUMS`` in that folder checks them. It is written beside its place, forced to disk, and renamed, so it is there
whole or not at all; only then is the one before the last removed. A checkpoint whose bytes have changed since is not
used: the run goes on from the one before.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from pathlib import Path
from typing import Any

import msgspec
import safetensors
import safetensors.torch
from torch import Tensor

from nestling.errors import RunError
from nestling.events import report
from nestling.experiment.directory import CHECKPOINTS
from nestling.files import sync, write_whole
from nestling.methods.context import Setup
from nestling.server.client_files import CLIENT_FILE, CLIENT_FOLDERS, ClientFiles
from nestling.server.client_store import ClientStore
from nestling.server.state import ServerState, Totals

_KEEP = 2
_GROUPS = ("state", "memory", "coverage", "submodels", "notes")
_FORMAT, _WITHOUT_SUMS = "nestling-checkpoint-3", "nestling-checkpoint-2"
_FIGURES, _SUMS = "figures.json", "SHA256SUMS"
_OWN_FILES = {_FIGURES, *(f"{group}.safetensors" for group in _GROUPS)}
_SUM = re.compile(rf"([0-9a-f]{{64}})  ([a-z.]+|\.\./\.\./({'|'.join(CLIENT_FOLDERS)})/({CLIENT_FILE.pattern}))")
_NAME = re.compile(r"round-\d{6,}")


class _Figures(msgspec.Struct, forbid_unknown_fields=True):
    format: str
    round: int
    counts: dict[str, float]
    best: dict[str, Any]
    private: dict[int, str]
    memories: dict[int, str]
    metrics: str = ""
    setups: dict[int, list[str]] = {}


class _Damaged(Exception):
    """A checkpoint is not as it was written."""


def write(folder: Path, state: ServerState, metrics: str = "", *, tidy: bool = True) -> None:
    """Write the checkpoint of a state, and the digest of its record, into a run directory.

    Without `tidy`, files of clients that it does not list stay: those of the next round, where that has begun already.
    """
    place = folder / CHECKPOINTS
    place.mkdir(exist_ok=True)
    name = f"round-{state.round:06d}"
    if (place / name).is_dir():
        return
    draft = place / f".{name}"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    submodels = {f"{key}/{name}": tensor for key, held in state.submodels.items() for name, tensor in held.items()}
    groups = (state.model, state.optimizer, state.totals.coverage, submodels, state.method_state)
    clients, totals = state.clients, state.totals
    sums: dict[str, str] = {}
    for kind, files in zip(CLIENT_FOLDERS, (clients.private, clients.kept), strict=True):
        sums |= {f"../../{kind}/{file}": value for file, value in files.checksums().items()}

    def put(file: str, data: bytes) -> None:
        write_whole(draft / file, data)
        sums[file] = hashlib.sha256(data).hexdigest()

    for group, tensors in zip(_GROUPS, groups, strict=True):
        put(f"{group}.safetensors", safetensors.torch.save(_untied(tensors)))
    handed_out = {client: sorted(keys) for client, keys in totals.handed_out.items()}
    indices = clients.private.index, clients.kept.index
    counts = {**totals.counts(), "simulated_seconds": totals.simulated_seconds}
    figures = _Figures(_FORMAT, state.round, counts, state.best, *indices, metrics, handed_out)
    put(_FIGURES, msgspec.json.format(msgspec.json.encode(figures)))
    write_whole(draft / _SUMS, "".join(f"{value}  {file}\n" for file, value in sums.items()).encode())
    sync(draft)
    draft.rename(place / name)
    sync(place)
    if tidy:
        _tidy(folder, clients)


def saved(folder: Path) -> list[Path]:
    """Return the checkpoints of a run directory, oldest first."""
    found = (path for path in (folder / CHECKPOINTS).glob("round-*") if _NAME.fullmatch(path.name))
    return sorted(found, key=_round)


def read(folder: Path, setup: Setup) -> ServerState | None:
    """Return the state of the last checkpoint that is undamaged, or None where there is none at all."""
    damaged: list[str] = []
    for place in reversed(saved(folder)):
        try:
            state = _read(place, setup)
        except _Damaged as problem:
            damaged.append(f"the checkpoint {place} cannot be read: {problem}")
            continue
        if damaged:
            report("checkpoint damaged", f"{damaged[0]}; the run goes on from {place.name}")
        return state
    if damaged:
        raise RunError(f"{damaged[0]}; no earlier one can be used: put back a copy, or start a new run")
    return None


def clean(folder: Path, state: ServerState) -> None:
    """Remove checkpoints later than a state that were found damaged, and files that belong to no checkpoint."""
    for place in saved(folder):
        if _round(place) > state.round:
            _remove(place)
    _tidy(folder, state.clients)


def metrics_digest(folder: Path, round: int) -> str:
    """Return the digest of the record that the checkpoint of a round was written with; empty where there is none."""
    path = folder / CHECKPOINTS / f"round-{round:06d}" / _FIGURES
    return msgspec.json.decode(path.read_bytes(), type=_Figures).metrics if path.exists() else ""


def _read(place: Path, setup: Setup) -> ServerState:
    folder = place.parent.parent
    sums = _verified(place)
    try:
        figures = msgspec.json.decode((place / _FIGURES).read_bytes(), type=_Figures)
    except FileNotFoundError:
        raise _Damaged(f"{_FIGURES} is missing") from None
    except msgspec.DecodeError as problem:
        raise _Damaged(str(problem).splitlines()[0]) from None
    if figures.format not in (_FORMAT, _WITHOUT_SUMS):
        raise RunError(f"the checkpoint {place} is of another kind ({figures.format!r}, not {_FORMAT!r})")
    if figures.round != _round(place):
        raise _Damaged(f"it holds round {figures.round}")
    if sums is None:
        if figures.format == _FORMAT:
            raise _Damaged(f"{_SUMS} is missing")
        report(
            "no checksums",
            f"the checkpoint {place} is of the format {_WITHOUT_SUMS}, which has no checksums: it is taken as it is",
        )
    indices = dict(zip(CLIENT_FOLDERS, (figures.private, figures.memories), strict=True))
    for kind, index in indices.items():
        for name in index.values():
            known = (folder / kind / name).is_file() if sums is None else f"../../{kind}/{name}" in sums
            if not CLIENT_FILE.fullmatch(name) or not known:
                raise _Damaged(f"{kind}/{name} is missing")
    try:
        groups = {group: safetensors.torch.load_file(place / f"{group}.safetensors") for group in _GROUPS}
    except (FileNotFoundError, safetensors.SafetensorError) as problem:
        raise _Damaged(str(problem).splitlines()[0]) from None
    stored = {name: setup.axes.tied.get(name, name) for name in setup.axes.dims}
    absent = next((name for name in stored.values() if name not in groups["state"]), None)
    if absent is not None:
        raise RunError(f"the checkpoint {place} is not of this model: it holds no tensor {absent!r}")
    model = {name: groups["state"][first] for name, first in stored.items()}
    submodels: dict[str, dict[str, Tensor]] = {}
    for name, tensor in groups["submodels"].items():
        key, _, inside = name.partition("/")
        submodels.setdefault(key, {})[inside] = tensor
    files = [
        ClientFiles(
            folder / kind, index, {name: sums[f"../../{kind}/{name}"] for name in index.values()} if sums else {}
        )
        for kind, index in indices.items()
    ]
    return ServerState(
        round=figures.round,
        model=model,
        optimizer=groups["memory"],
        submodels=submodels,
        method_state=groups["notes"],
        clients=ClientStore(*files),
        totals=_totals(figures, groups["coverage"]),
        best=figures.best,
    )


def _verified(place: Path) -> dict[str, str] | None:
    """Return the checksums of a checkpoint, all of which are right; None where it has none."""
    sums = _sums(place)
    if sums is None:
        return None
    for name in (*sorted(_OWN_FILES), *sums):
        if name not in sums:
            raise _Damaged(f"{_SUMS} does not name {name}")
        try:
            with (place / name).open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except FileNotFoundError:
            raise _Damaged(f"{name.removeprefix('../../')} is missing") from None
        if found != sums[name]:
            raise _Damaged(f"{name.removeprefix('../../')} does not match its checksum")
    return sums


def _sums(place: Path) -> dict[str, str] | None:
    """Return the checksums that a checkpoint lists, by file; None where it lists none."""
    try:
        text = (place / _SUMS).read_bytes().decode("ascii", errors="replace")
    except FileNotFoundError:
        return None
    sums = {}
    for line in text.splitlines():
        found = _SUM.fullmatch(line)
        if found is None:
            raise _Damaged(f"{_SUMS} holds a line that is no checksum")
        sums[found[2]] = found[1]
    return sums


def _tidy(folder: Path, clients: ClientStore) -> None:
    """Remove all but the last checkpoints, and the files of single clients that belong to none of them."""
    for old in saved(folder)[:-_KEEP]:
        _remove(old)
    for kind, files in zip(CLIENT_FOLDERS, (clients.private, clients.kept), strict=True):
        files.tidy({name for place in saved(folder) for name in _client_files(place, kind)})


def _client_files(place: Path, kind: str) -> list[str]:
    """Return the names of single clients' files of a kind that belong to a checkpoint."""
    try:
        sums = _sums(place)
        if sums is not None:
            return [Path(name).name for name in sums if name.startswith(f"../../{kind}/")]
        figures = msgspec.json.decode((place / _FIGURES).read_bytes(), type=_Figures)
    except (_Damaged, FileNotFoundError, msgspec.DecodeError):
        return []  # nobody will go on from it
    return list((figures.private if kind == CLIENT_FOLDERS[0] else figures.memories).values())


def _remove(place: Path) -> None:
    """Remove a checkpoint such that a kill leaves none that is there in part."""
    draft = place.with_name(f".{place.name}")
    shutil.rmtree(draft, ignore_errors=True)
    place.rename(draft)
    shutil.rmtree(draft)


def _round(place: Path) -> int:
    return int(place.name.removeprefix("round-"))


def _totals(figures: _Figures, coverage: dict[str, Tensor]) -> Totals:
    """Return what was spent; earlier versions knew no bytes of frozen parameters."""
    counts = figures.counts
    whole = {name: int(counts.get(name, 0)) for name in Totals().counts()}
    handed_out = {client: frozenset(keys) for client, keys in figures.setups.items()}
    seconds = counts["simulated_seconds"]
    return Totals(**whole, simulated_seconds=seconds, coverage=coverage, handed_out=handed_out)


def _untied(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors under the first of their names: a file cannot hold one twice."""
    seen: set[int] = set()
    result = {}
    for name, tensor in tensors.items():
        if tensor.numel() == 0 or tensor.data_ptr() not in seen:
            seen.add(tensor.data_ptr())
            result[name] = tensor.contiguous()
    return result
