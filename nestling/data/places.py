"""Where data lies: the caller's folder, ``NESTLING_DATA``, and the cache."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from nestling.errors import DataError

Layout = tuple[str, ...]  # files or folders that make up a dataset together


def cache_dir() -> Path:
    """Return the folder for what can be made or fetched again: ``NESTLING_CACHE``, or the system's place for that."""
    if given := os.environ.get("NESTLING_CACHE"):
        return Path(given).expanduser()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "nestling" / "cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "nestling"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nestling"


def download_dir() -> Path:
    """Return the folder that `nestling data get` fills."""
    return cache_dir() / "data"


def folders(data_dir: str | Path | None = None) -> list[Path]:
    """List the folders to search, in this order: `data_dir`, ``NESTLING_DATA``, what was fetched."""
    found = []
    for what, given in (("data directory", data_dir), ("folder NESTLING_DATA", os.environ.get("NESTLING_DATA"))):
        if given:
            folder = Path(given).expanduser()
            if not folder.is_dir():
                raise DataError(f"the {what} {str(folder)!r} does not exist")
            found.append(folder)
    return [*found, download_dir()]


def find(
    name: str,
    layouts: Sequence[Layout],
    inside: Sequence[str],
    data_dir: str | Path | None = None,
    *,
    own: bool = False,
) -> tuple[Path, ...]:
    """Return the paths of the first of `layouts` that is there as a whole, or say what was sought and where.

    Parameters
    ----------
    name
        The dataset, for the error.
    layouts
        The forms the dataset comes in, the best first.
    inside
        Folders within the searched ones to look into; "" is the searched folder itself. A searched folder that is
        called so itself counts as well.
    own
        Whether the files are the caller's own, so that nobody can fetch them.
    """
    searched = folders(data_dir)
    bases: list[Path] = []
    for folder in searched:
        for part in inside:
            bases.append(folder / part)
            if part and folder.resolve().name == part:
                bases.append(folder)
    for base in bases:
        for layout in layouts:
            paths = tuple(base / file for file in layout)
            if all(path.exists() for path in paths):
                return paths
    sought = f"{layouts[0][0]!r}" + (f" and {len(layouts[0]) - 1} more" if len(layouts[0]) > 1 else "")
    others = ", nor another of its forms," if len(layouts) > 1 else ""
    # Where file names are shared among datasets, only folders of the right name are searched: name those.
    places = searched if "" in inside else [folder / inside[0] for folder in searched]
    where = " or ".join(repr(str(place)) for place in places)
    advice = "say with --data-dir or NESTLING_DATA where it is" if own else f"fetch it with 'nestling data get {name}'"
    raise DataError(f"the data of {name!r} is not there: no {sought}{others} in {where}; {advice}")
