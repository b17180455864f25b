"""Golden runs: does the working tree compute what an earlier revision computed, byte for byte?

``python tests/golden/golden.py BASE [NAME…]`` (or ``make golden BASE=REV``) checks the revision out beside the working
tree, makes the runs of golden_runs.toml with both on this processor, and compares what they left: metrics.jsonl,
summary.json (without what depends on the clock or is worded for people), the model and its sub-models, the tensors of
every checkpoint, and what single clients keep. No digest is committed, as last bits differ between processors.

Runs of the base are kept in ``.golden/`` and used again the next time.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import safetensors
import torch
from golden_make import cases
from torch import Tensor

ROOT = Path(__file__).parents[2]
PLACE = ROOT / ".golden"
# What may differ: the clock, the machine, sentences, and keys that a later revision adds.
IGNORED = ("seconds", "command", "events", "workers_lost")
# Files of a checkpoint under the names that they had in version 0.1.
GROUPS = {"model": "state", "optimizer": "memory", "method_state": "notes"}


def main(base: str, names: list[str]) -> int:
    """Make the runs of both, compare them, and return the number that differ."""
    revision = _git("rev-parse", "--short=12", base)
    names = names or list(cases())
    old, new = PLACE / revision, PLACE / "working-tree"
    shutil.rmtree(new, ignore_errors=True)
    source = PLACE / f"{revision}-source"
    _check_out(revision, source)
    missing = [name for name in names if not (old / f"{name}.done").exists()]
    _make({source: (old, missing), ROOT: (new, names)})
    for name in missing:
        (old / f"{name}.done").touch()
    different = 0
    for name in names:
        problems = list(_differences(old / name, new / name))
        same_as = cases()[name].get("same_as")
        if same_as in names:
            problems += [
                f"not as {same_as}: {line}" for line in _tensor_differences(_models(new / same_as), _models(new / name))
            ]
        different += bool(problems)
        print(f"{name}: {'same bytes' if not problems else 'DIFFERENT'}")
        for problem in problems[:5]:
            print(f"    {problem}")
    print(f"{len(names) - different} of {len(names)} runs are the same as at {revision}")
    return different


def _git(*arguments: str) -> str:
    return subprocess.run(("git", *arguments), cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def _check_out(revision: str, source: Path) -> None:
    if source.exists():
        return
    draft = source.with_suffix(".draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    archive = subprocess.Popen(("git", "archive", revision, "nestling"), cwd=ROOT, stdout=subprocess.PIPE)
    subprocess.run(("tar", "-x", "-C", str(draft)), stdin=archive.stdout, check=True)
    if archive.wait():
        raise SystemExit(f"{revision} cannot be checked out")
    draft.rename(source)


def _make(plan: Mapping[Path, tuple[Path, list[str]]]) -> None:
    """Make runs with each of some source trees, side by side."""
    started = []
    for source, (folder, names) in plan.items():
        if not names:
            continue
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            shutil.rmtree(folder / name, ignore_errors=True)
        script = Path(__file__).with_name("golden_make.py")
        environment = os.environ | {"PYTHONPATH": str(source)}
        log = folder.with_suffix(".log")
        with log.open("w") as file:
            child = subprocess.Popen(
                (sys.executable, str(script), str(folder), *names),
                env=environment,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        started.append((child, log))
    for child, log in started:
        if child.wait():
            raise SystemExit(f"the runs could not be made:\n{log.read_text()[-2000:]}")


def _differences(old: Path, new: Path) -> Iterator[str]:
    """Yield a sentence for everything in which two run directories differ."""
    if (old / "metrics.jsonl").read_bytes() != (new / "metrics.jsonl").read_bytes():
        yield from _json_differences(_lines(old), _lines(new), "metrics.jsonl")
    before, after = (json.loads((place / "summary.json").read_text()) for place in (old, new))
    for key in before:
        if key not in IGNORED:
            yield from _json_differences(before[key], after.get(key), f"summary.json: {key}")
    yield from _tensor_differences(_models(old), _models(new))
    for path in _model_files(old):
        if path.read_bytes() != (new / path.relative_to(old)).read_bytes():
            yield f"{path.name}: other bytes (its plan is {_plan(path)}, then {_plan(new / path.relative_to(old))})"
    rounds = [sorted(path.name for path in (place / "checkpoints").iterdir()) for place in (old, new)]
    if rounds[0] != rounds[1]:
        yield f"checkpoints {rounds[0]} became {rounds[1]}"
        return
    for name in rounds[0]:
        yield from _tensor_differences(_checkpoint(old / "checkpoints" / name), _checkpoint(new / "checkpoints" / name))


def _lines(place: Path) -> list[Any]:
    return [json.loads(line) for line in (place / "metrics.jsonl").read_text().splitlines()]


def _json_differences(old: Any, new: Any, where: str) -> Iterator[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        if list(old) != list(new):
            yield f"{where}: keys {list(old)} became {list(new)}"
        for key in old.keys() & new.keys():
            yield from _json_differences(old[key], new[key], f"{where}.{key}")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from _json_differences(one, other, f"{where}[{index}]")
    elif old != new:
        yield f"{where}: {old!r} became {new!r}"


def _tensor_differences(old: Mapping[str, Tensor], new: Mapping[str, Tensor]) -> Iterator[str]:
    if old.keys() != new.keys():
        yield f"tensors: lost {sorted(old.keys() - new.keys())[:3]}, new {sorted(new.keys() - old.keys())[:3]}"
    for name in sorted(old.keys() & new.keys()):
        one, other = old[name], new[name]
        if one.shape != other.shape or one.dtype != other.dtype:
            yield f"{name}: {one.dtype} {tuple(one.shape)} became {other.dtype} {tuple(other.shape)}"
        elif one.numel() and _bytes(one).ne(_bytes(other)).any():
            yield f"{name}: differs by up to {(one.double() - other.double()).abs().max().item():.3g}"


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().flatten().view(torch.uint8)


def _models(place: Path) -> dict[str, Tensor]:
    """Return the tensors of the model and of all sub-models of a run directory."""
    return {f"{path.name}: {name}": tensor for path in _model_files(place) for name, tensor in _read(path).items()}


def _model_files(place: Path) -> list[Path]:
    return [place / "model.safetensors", *sorted((place / "submodels").glob("*.safetensors"))]


def _plan(path: Path) -> dict[str, str]:
    with safetensors.safe_open(path, framework="pt") as file:
        return file.metadata() or {}


def _checkpoint(place: Path) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint, and those that its clients keep, by names that outlast their files."""
    actual = {}
    for path in place.glob("*.safetensors"):
        group = GROUPS.get(path.stem, path.stem)
        actual |= {f"{place.name} {group}: {name}": tensor for name, tensor in _read(path).items()}
    for line in (place / "SHA256SUMS").read_text().splitlines():
        file = Path(line.split(maxsplit=1)[1])
        if len(file.parts) > 1:  # ../../private/CLIENT-ROUND.safetensors
            client, prefix = file.stem.partition("-")[0], "private/" if file.parent.name == "private" else ""
            held = _read(place / file)
            actual |= {f"{place.name} client {client}: {prefix}{name}": tensor for name, tensor in held.items()}
    return actual


def _read(path: Path) -> dict[str, Tensor]:
    with safetensors.safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dict


if __name__ == "__main__":
    if len(sys.argv) < 2 or not sys.argv[1]:
        raise SystemExit("say which revision to compare with: make golden BASE=REV")
    raise SystemExit(1 if main(sys.argv[1], sys.argv[2:]) else 0)
