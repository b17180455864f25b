"""Folders that the program uses without being told of them."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def cache_dir() -> Path:
    """Return the cache folder: ``NESTLING_CACHE``, or the system's usual place for caches."""
    if folder := os.environ.get("NESTLING_CACHE"):
        return Path(folder).expanduser()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "nestling" / "cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "nestling"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nestling"
