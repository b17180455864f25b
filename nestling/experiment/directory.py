"""Run directories: new or empty at first, with one writer at a time, and cleaned of what killed runs leave behind.

A run has begun once its config.toml exists; before that, whatever it wrote may be overwritten. Files are written under
another name and renamed (`nestling.files.write_whole`), so a kill can leave drafts: hidden files with the final name
and eight random characters, and hidden folders of checkpoints.
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from nestling.errors import RunError
from nestling.experiment.disk import cannot_write, creating
from nestling.experiment.lock import LOCK, locked
from nestling.server.client_files import CLIENT_FILE, CLIENT_FOLDERS

CONFIG, IDENTITY, METRICS, EVENTS = "config.toml", "identity.json", "metrics.jsonl", "events.jsonl"
SUMMARY, SECONDS, MODEL = "summary.json", "seconds.json", "model.safetensors"
STATISTICS, PROGRESS, TRACKING = "statistics.safetensors", "progress.json", "tracking.json"
DEVICES = "devices.json"  # of a run whose clients are, or were, real devices
CHECKPOINTS, SUBMODELS = "checkpoints", "submodels"
_WHOLE = (CONFIG, IDENTITY, METRICS, SUMMARY, SECONDS, MODEL, STATISTICS, PROGRESS, TRACKING, DEVICES)
_FILES = {  # folder → pattern of the names of files in it that are written as drafts first
    ".": "|".join(map(re.escape, _WHOLE)),
    SUBMODELS: r".+\.safetensors",
    **dict.fromkeys(CLIENT_FOLDERS, CLIENT_FILE.pattern),
}
_CHECKPOINT_DRAFT = re.compile(r"\.round-\d{6,}")


@contextmanager
def new_run(folder: Path) -> Iterator[None]:
    """Hold the lock of a directory for a new run; raise unless it is empty or does not exist yet.

    If no run begins in it, directories that were created here are removed again.
    """
    with creating(folder):
        created = [path for path in (folder, *folder.parents) if not path.exists()]
        if not (folder / LOCK).exists():  # else `locked` raises a better message: who is writing
            _check_unused(folder)
    try:
        with locked(folder):
            _check_unused(folder)
            remove_drafts(folder)
            yield
    finally:
        remove_if_empty(*created)


@contextmanager
def begun_run(folder: Path) -> Iterator[None]:
    """Hold the lock of the directory of a run that has begun."""
    if not ((folder / CONFIG).is_file() or (folder / LOCK).is_file()):
        raise _no_run(folder)
    with locked(folder):
        if not (folder / CONFIG).is_file():
            raise _no_run(folder)
        remove_drafts(folder)
        yield


def claim(path: Path) -> Path:
    """Create a directory that did not exist and return it: `path`, or else `path` with -2, -3, … at its end.

    If several processes ask for the same path at once, each gets a different directory.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as name:
    ...     [claim(Path(name, "runs", "seed-0")).name for _ in range(3)]
    ['seed-0', 'seed-0-2', 'seed-0-3']
    """
    folder, number = path, 1
    while True:
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir()
        except FileExistsError as problem:
            if not folder.exists():  # a parent is not a directory
                raise cannot_write(folder, problem) from None
            number += 1
            folder = path.with_name(f"{path.name}-{number}")
        except FileNotFoundError:  # a parent was removed meanwhile
            continue
        except OSError as problem:
            raise cannot_write(folder, problem) from None
        else:
            return folder


def remove_if_empty(*folders: Path) -> None:
    """Remove the empty ones of some directories, which are given from the innermost."""
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


def remove_drafts(folder: Path) -> None:
    """Remove the drafts that a killed run left in its directory, and nothing else."""
    for path in _drafts(folder):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _drafts(folder: Path) -> list[Path]:
    drafts = []
    for inner, names in _FILES.items():
        pattern = re.compile(rf"\.(?:{names})\.[a-z0-9_]{{8}}")
        drafts += [path for path in _entries(folder / inner) if pattern.fullmatch(path.name)]
    return drafts + [path for path in _entries(folder / CHECKPOINTS) if _CHECKPOINT_DRAFT.fullmatch(path.name)]


def _entries(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def _check_unused(folder: Path) -> None:
    """Raise if a directory holds more than what a run leaves behind that was killed before it had begun."""
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{str(folder)!r} is a file: give a directory")
    leftovers = {folder / LOCK, folder / IDENTITY, folder / EVENTS, *_drafts(folder)}
    if (folder / CONFIG).exists() or any(path not in leftovers for path in _entries(folder)):
        hint = f"; 'nestling resume {shlex.quote(str(folder))}' goes on with it" if (folder / CONFIG).exists() else ""
        raise RunError(f"{str(folder)!r} is not empty: give another directory{hint}")


def _no_run(folder: Path) -> RunError:
    reason = f"{str(folder)!r} is not a run directory: it holds no {CONFIG}"
    try:
        _check_unused(folder)
    except RunError:
        return RunError(reason)
    if not folder.is_dir():
        return RunError(f"{str(folder)!r} is not a run directory: there is no such directory")
    return RunError(
        f"{reason}, so nothing was started here; 'nestling run … --out {shlex.quote(str(folder))}' can use it"
    )
