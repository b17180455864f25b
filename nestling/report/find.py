"""Find runs in folders, at any depth."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from nestling.errors import ReportError
from nestling.report.read import CONFIG, METRICS, SUMMARY, Run, no_directory, read


def find(paths: Iterable[str | os.PathLike[str]]) -> list[Run]:
    """Return the runs in `paths`: run directories, or folders that contain some at any depth.

    The order is that of `paths`, and inside a folder that of names, with numbers by value (``seed-2`` before
    ``seed-10``). A run that is found twice is returned once.

    >>> find(["no/such/folder"])
    Traceback (most recent call last):
    nestling.errors.ReportError: there is no directory no/such/folder
    """
    unique: dict[Path, Path] = {}
    for path in map(Path, paths):
        for directory in _run_directories(path):
            unique.setdefault(directory.resolve(), directory)
    return [read(directory) for directory in unique.values()]


def find_readable(paths: Iterable[str | os.PathLike[str]]) -> tuple[list[Run], list[str]]:
    """Return the runs in `paths` that can be read, as `find` does, and a sentence for everything that cannot be read.

    >>> find_readable(["no/such/folder"])
    ([], ['there is no directory no/such/folder'])
    """
    runs: dict[Path, Run] = {}
    problems: list[str] = []
    for path in map(Path, paths):
        try:
            directories = _run_directories(path)
        except ReportError as problem:
            problems.append(str(problem))
            continue
        for directory in directories:
            try:
                runs.setdefault(directory.resolve(), read(directory))
            except ReportError as problem:
                problems.append(str(problem))
    return list(runs.values()), problems


def _run_directories(path: Path) -> list[Path]:
    """Return the run directories in a folder; raise if there is none."""
    if not path.is_dir():
        raise ReportError(no_directory(path))
    directories = list(_directories(path))
    if not directories:
        raise ReportError(f"there is no run in {path}: a run directory holds {CONFIG} and {METRICS}")
    return directories


def _directories(folder: Path) -> Iterator[Path]:
    if (folder / METRICS).is_file() or (folder / SUMMARY).is_file():
        yield folder  # do not descend: a run's checkpoints are not runs
        return
    try:
        children = [child for child in folder.iterdir() if child.is_dir() and not child.is_symlink()]
    except OSError as problem:
        raise ReportError(f"the folder {folder} cannot be read: {problem.strerror}") from None
    for child in sorted(children, key=_natural):
        if not child.name.startswith("."):
            yield from _directories(child)


def _natural(path: Path) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", path.name)]
