"""Checkpoints: a run that is killed at any moment is resumed from the last one with the same numbers.

A checkpoint is a folder ``checkpoints/round-000010`` with the server's tensors (safetensors), its figures (JSON) and
SHA256SUMS, which holds the checksums of all its files, including those of single clients: ``sha256sum -c SHA256SUMS``
in that folder checks them. It is written to a hidden folder, forced to disk and renamed, so it exists completely or not
at all; only then are older ones removed, except for the last two. If its bytes have changed since, the run is resumed
from the one before.

Where the server waits for nobody, a checkpoint also lists the clients in training and holds the models that they began
with, one file each. What these clients do follows from their numbers, so it is not stored, but done when they arrive.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import safetensors
import safetensors.torch
from torch import Tensor

from nestling.cut.extract import cuts
from nestling.errors import RunError
from nestling.events import report
from nestling.experiment.directory import CHECKPOINTS
from nestling.files import sync, write_whole
from nestling.methods.context import Setup
from nestling.server.client_files import CLIENT_FILE, CLIENT_FOLDERS, ClientFiles
from nestling.server.client_store import ClientStore
from nestling.server.in_flight import Flights, InFlight, Version
from nestling.server.state import ServerState, Totals

_KEEP = 2  # checkpoints
_GROUPS = ("state", "memory", "coverage", "submodels", "notes")
_FORMAT = "nestling-checkpoint-3"
_FIGURES, _SUMS = "figures.json", "SHA256SUMS"
_OWN_FILES = {_FIGURES, *(f"{group}.safetensors" for group in _GROUPS)}
_SUM_LINE = re.compile(
    rf"([0-9a-f]{{64}})  ([a-z0-9.-]+|\.\./\.\./({'|'.join(CLIENT_FOLDERS)})/({CLIENT_FILE.pattern}))"
)
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
    in_training: list[tuple[int, int, float]] = []
    versions: list[int] = []


class _Damaged(Exception):
    """A file of a checkpoint is missing or was changed."""


def write(folder: Path, state: ServerState, metrics: str = "", *, tidy: bool = True) -> None:
    """Write the checkpoint of a state, and the digest of its record, into a run directory.

    Without `tidy`, client files that it does not list are kept: they may belong to the round that is running.
    """
    path = folder / CHECKPOINTS / f"round-{state.round:06d}"
    path.parent.mkdir(exist_ok=True)
    if path.is_dir():
        return
    draft = path.with_name(f".{path.name}")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    submodels = _joined(state.submodels)
    groups = (state.model, state.optimizer, state.totals.coverage, submodels, state.method_state)
    clients, totals, flights = state.clients, state.totals, state.flights
    sums: dict[str, str] = {}
    for kind, files in clients.by_folder().items():
        sums |= {f"../../{kind}/{file}": checksum for file, checksum in files.checksums().items()}

    def write_file(file: str, data: bytes) -> None:
        write_whole(draft / file, data)
        sums[file] = hashlib.sha256(data).hexdigest()

    for group, tensors in zip(_GROUPS, groups, strict=True):
        write_file(f"{group}.safetensors", safetensors.torch.save(_untied(tensors)))
    for number, version in flights.versions.items():
        own = {f"own/{name}": tensor for name, tensor in _joined(version.submodels).items()}
        write_file(_version_file(number), safetensors.torch.save(_untied(version.model) | own))
    handed_out = {client: sorted(keys) for client, keys in totals.handed_out.items()}
    indices = clients.private.index, clients.kept.index
    counts = {**totals.counts(), "simulated_seconds": totals.simulated_seconds}
    in_training = [(one.client, one.round, one.arrives) for one in flights.clients]
    figures = _Figures(
        _FORMAT, state.round, counts, state.best, *indices, metrics, handed_out, in_training, list(flights.versions)
    )
    write_file(_FIGURES, msgspec.json.format(msgspec.json.encode(figures)))
    write_whole(draft / _SUMS, "".join(f"{checksum}  {file}\n" for file, checksum in sums.items()).encode())
    sync(draft)
    draft.rename(path)
    sync(path.parent)
    if tidy:
        _tidy(folder, clients)


def saved(folder: Path) -> list[Path]:
    """Return the checkpoints of a run directory, oldest first."""
    paths = (path for path in (folder / CHECKPOINTS).glob("round-*") if _NAME.fullmatch(path.name))
    return sorted(paths, key=_round)


def read(folder: Path, setup: Setup) -> ServerState | None:
    """Return the state of the last undamaged checkpoint, or None if there are no checkpoints."""
    damaged: list[str] = []
    for path in reversed(saved(folder)):
        try:
            state = _read(path, setup)
        except _Damaged as problem:
            damaged.append(f"the checkpoint {path} cannot be read: {problem}")
            continue
        if damaged:
            report("checkpoint damaged", f"{damaged[0]}; the run goes on from {path.name}")
        return state
    if damaged:
        raise RunError(f"{damaged[0]}; no earlier one can be used: put back a copy, or start a new run")
    return None


def clean(folder: Path, state: ServerState) -> None:
    """Remove the damaged checkpoints of rounds after a state, and files that belong to no checkpoint."""
    for path in saved(folder):
        if _round(path) > state.round:
            _remove(path)
    _tidy(folder, state.clients)


def metrics_digest(folder: Path, round: int) -> str:
    """Return the digest of the record in the checkpoint of a round; empty if there is none."""
    path = folder / CHECKPOINTS / f"round-{round:06d}" / _FIGURES
    return msgspec.json.decode(path.read_bytes(), type=_Figures).metrics if path.exists() else ""


def _read(path: Path, setup: Setup) -> ServerState:
    folder = path.parent.parent
    sums = _verified_sums(path)
    try:
        figures = msgspec.json.decode((path / _FIGURES).read_bytes(), type=_Figures)
    except msgspec.DecodeError as problem:
        raise _Damaged(str(problem).splitlines()[0]) from None
    if figures.format != _FORMAT:
        raise RunError(f"the checkpoint {path} is of another kind ({figures.format!r}, not {_FORMAT!r})")
    if figures.round != _round(path):
        raise _Damaged(f"it holds round {figures.round}")
    indices = dict(zip(CLIENT_FOLDERS, (figures.private, figures.memories), strict=True))
    for kind, index in indices.items():
        for name in index.values():
            if not CLIENT_FILE.fullmatch(name) or f"../../{kind}/{name}" not in sums:
                raise _Damaged(f"{kind}/{name} is missing")
    try:
        groups = {group: safetensors.torch.load_file(path / f"{group}.safetensors") for group in _GROUPS}
        versions = {number: _read_version(path, setup, number) for number in figures.versions}
    except (FileNotFoundError, safetensors.SafetensorError) as problem:
        raise _Damaged(str(problem).splitlines()[0]) from None
    stored = {name: setup.axes.tied.get(name, name) for name in setup.axes.dims}
    absent = next((name for name in stored.values() if name not in groups["state"]), None)
    if absent is not None:
        raise RunError(f"the checkpoint {path} is not of this model: it holds no tensor {absent!r}")
    model = {name: groups["state"][first] for name, first in stored.items()}
    submodels = _parted(groups["submodels"])
    _check_submodels(path, setup, submodels, groups["notes"])
    files = []
    for kind, index in indices.items():
        checksums = {name: sums[f"../../{kind}/{name}"] for name in index.values()}
        files.append(ClientFiles(folder / kind, index, checksums))
    return ServerState(
        round=figures.round,
        model=model,
        optimizer=groups["memory"],
        submodels=submodels,
        method_state=groups["notes"],
        clients=ClientStore(*files),
        totals=_totals(figures, groups["coverage"]),
        best=figures.best,
        flights=Flights(tuple(InFlight(*one) for one in figures.in_training), versions),
    )


def _version_file(number: int) -> str:
    return f"version-{number}.safetensors"


def _read_version(path: Path, setup: Setup, number: int) -> Version:
    tensors = safetensors.torch.load_file(path / _version_file(number))
    own = {name.removeprefix("own/"): tensor for name, tensor in tensors.items() if name.startswith("own/")}
    model = {name: tensors[setup.axes.tied.get(name, name)] for name in setup.axes.dims}
    return Version(model, _parted(own))


def _joined(submodels: Mapping[str, dict[str, Tensor]]) -> dict[str, Tensor]:
    """Return the tensors of sub-models as one dictionary: key of the plan/name → tensor."""
    return {f"{key}/{name}": tensor for key, own in submodels.items() for name, tensor in own.items()}


def _parted(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Return what `_joined` joined."""
    submodels: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        key, _, own_name = name.partition("/")
        submodels.setdefault(key, {})[own_name] = tensor
    return submodels


def _check_submodels(
    path: Path, setup: Setup, submodels: dict[str, dict[str, Tensor]], method_state: dict[str, Tensor]
) -> None:
    """Raise if a sub-model's own tensors are not those of its plan: an earlier version may have cut it differently."""
    for ratio in setup.ratios if submodels else ():
        plan = setup.submodel_plan(ratio, method_state)
        if plan.key not in submodels:
            continue
        own = {name: tuple(tensor.shape) for name, tensor in submodels[plan.key].items()}
        shapes = {name: cut.shape for name, cut in cuts(setup.axes, plan).items()}
        missing = {name for name in setup.per_submodel & shapes.keys() if setup.axes.tied.get(name, name) not in own}
        if missing or not own.items() <= shapes.items():
            raise RunError(
                f"the checkpoint {path} has another sub-model {plan.key!r} than this version cuts: "
                "finish the run with the version it was begun with, or begin it again"
            )


def _verified_sums(path: Path) -> dict[str, str]:
    """Return the checksums of a checkpoint; raise if a file does not match."""
    sums = _read_sums(path)
    for name in (*sorted(_OWN_FILES), *sums):
        if name not in sums:
            raise _Damaged(f"{_SUMS} does not name {name}")
        try:
            with (path / name).open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except FileNotFoundError:
            raise _Damaged(f"{name.removeprefix('../../')} is missing") from None
        if digest != sums[name]:
            raise _Damaged(f"{name.removeprefix('../../')} does not match its checksum")
    return sums


def _read_sums(path: Path) -> dict[str, str]:
    """Return the checksums that a checkpoint lists, by file."""
    try:
        text = (path / _SUMS).read_bytes().decode("ascii", errors="replace")
    except FileNotFoundError:
        raise _Damaged(f"{_SUMS} is missing") from None
    sums = {}
    for line in text.splitlines():
        match = _SUM_LINE.fullmatch(line)
        if match is None:
            raise _Damaged(f"{_SUMS} holds a line that is no checksum")
        sums[match[2]] = match[1]
    return sums


def _tidy(folder: Path, clients: ClientStore) -> None:
    """Remove all but the last checkpoints, and client files that belong to none of them."""
    for old in saved(folder)[:-_KEEP]:
        _remove(old)
    for kind, files in clients.by_folder().items():
        files.tidy({name for path in saved(folder) for name in _client_files(path, kind)})


def _client_files(path: Path, kind: str) -> list[str]:
    """Return the names of the client files of a kind that belong to a checkpoint."""
    try:
        return [Path(name).name for name in _read_sums(path) if name.startswith(f"../../{kind}/")]
    except _Damaged:
        return []  # the run cannot be resumed from it


def _remove(path: Path) -> None:
    """Remove a checkpoint; hide it first, so that a kill leaves no incomplete one."""
    draft = path.with_name(f".{path.name}")
    shutil.rmtree(draft, ignore_errors=True)
    path.rename(draft)
    shutil.rmtree(draft)


def _round(path: Path) -> int:
    return int(path.name.removeprefix("round-"))


def _totals(figures: _Figures, coverage: dict[str, Tensor]) -> Totals:
    """Return what was spent; earlier versions did not count the bytes of frozen parameters."""
    counts = figures.counts
    whole = {name: int(counts.get(name, 0)) for name in Totals().counts()}
    handed_out = {client: frozenset(keys) for client, keys in figures.setups.items()}
    seconds = counts["simulated_seconds"]
    return Totals(**whole, simulated_seconds=seconds, coverage=coverage, handed_out=handed_out)


def _untied(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return every tensor under the first of its names: a file cannot hold the same memory twice."""
    seen: set[int] = set()
    result = {}
    for name, tensor in tensors.items():
        if tensor.numel() == 0 or tensor.data_ptr() not in seen:
            seen.add(tensor.data_ptr())
            result[name] = tensor.contiguous()
    return result
