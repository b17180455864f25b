"""Run directories: made or found empty, one writer at a time, and without what killed runs leave behind.

A run has begun once its config.toml is there; before that, whatever it wrote may be written again. Files are written
beside their place and renamed (`nestling.files.write_whole`), so a kill can leave drafts: hidden files with the name
that they were to get and eight random characters, and hidden folders of checkpoints.
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

CONFIG, IDENTITY, METRICS, SUMMARY, SECONDS = (
    "config.toml",
    "identity.json",
    "metrics.jsonl",
    "summary.json",
    "seconds.json",
)
MODEL, EVENTS, CHECKPOINTS, SUBMODELS = "model.safetensors", "events.jsonl", "checkpoints", "submodels"
_OURS = {
    ".": "|".join(map(re.escape, (CONFIG, IDENTITY, METRICS, SUMMARY, SECONDS, MODEL))),
    SUBMODELS: r".+\.safetensors",
    **dict.fromkeys(CLIENT_FOLDERS, CLIENT_FILE.pattern),
}
_CHECKPOINT_DRAFT = re.compile(r"\.round-\d{6,}")


@contextmanager
def new_run(folder: Path) -> Iterator[None]:
    """Hold the lock of a directory for a new run: one that is not there yet, or holds nothing.

    A directory that is made here and in which no run begins is removed again.
    """
    with creating(folder):
        created = [path for path in (folder, *folder.parents) if not path.exists()]
        if not (folder / LOCK).exists():  # where there is one, who is writing is the better answer
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


def claim(place: Path) -> Path:
    """Make a directory that nobody has yet and return it: the one given, or one with -2, -3, … at its end.

    Of several processes that ask for the same at once, each gets another.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as name:
    ...     [claim(Path(name, "runs", "seed-0")).name for _ in range(3)]
    ['seed-0', 'seed-0-2', 'seed-0-3']
    """
    tried, number = place, 1
    while True:
        try:
            tried.parent.mkdir(parents=True, exist_ok=True)
            tried.mkdir()
        except FileExistsError as problem:
            if not tried.exists():  # it is a parent that is no directory
                raise cannot_write(tried, problem) from None
            number += 1
            tried = place.with_name(f"{place.name}-{number}")
        except FileNotFoundError:  # a parent that was removed meanwhile
            continue
        except OSError as problem:
            raise cannot_write(tried, problem) from None
        else:
            return tried


def remove_if_empty(*folders: Path) -> None:
    """Remove those of the directories, from the innermost, that hold nothing."""
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


def remove_drafts(folder: Path) -> None:
    """Remove the drafts that a killed run left in its directory: those that we name, and nothing else."""
    for path in _drafts(folder):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _drafts(folder: Path) -> list[Path]:
    found = []
    for inner, names in _OURS.items():
        pattern = re.compile(rf"\.(?:{names})\.[a-z0-9_]{{8}}")
        found += [path for path in _entries(folder / inner) if pattern.fullmatch(path.name)]
    found += [path for path in _entries(folder / CHECKPOINTS) if _CHECKPOINT_DRAFT.fullmatch(path.name)]
    return found


def _entries(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def _check_unused(folder: Path) -> None:
    """Raise where a directory holds more than a run leaves behind that is killed before it has begun."""
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{str(folder)!r} is a file: give a directory")
    ours = {folder / LOCK, folder / IDENTITY, folder / EVENTS, *_drafts(folder)}
    if (folder / CONFIG).exists() or any(path not in ours for path in _entries(folder)):
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
