"""Runs in folders, at any depth."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from nestling.errors import ReportError
from nestling.report.read import CONFIG, METRICS, SUMMARY, Run, no_directory, read


def find(paths: Iterable[str | os.PathLike[str]]) -> list[Run]:
    """Return the runs in `paths`: run directories, or folders that hold some at any depth.

    The order is that of `paths`, and inside a folder that of names, numbers by their value (``seed-2`` before
    ``seed-10``). A run that is reached twice is returned once.

    Examples
    --------
    >>> find(["no/such/folder"])
    Traceback (most recent call last):
    nestling.errors.ReportError: there is no directory no/such/folder
    """
    found: dict[Path, Path] = {}
    for path in map(Path, paths):
        if not path.is_dir():
            raise ReportError(no_directory(path))
        directories = list(_directories(path))
        if not directories:
            raise ReportError(f"there is no run in {path}: a run directory holds {CONFIG} and {METRICS}")
        for directory in directories:
            found.setdefault(directory.resolve(), directory)
    return [read(directory) for directory in found.values()]


def _directories(folder: Path) -> Iterator[Path]:
    if (folder / METRICS).is_file() or (folder / SUMMARY).is_file():
        yield folder  # nothing below: a run's checkpoints are no runs
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
