"""What the shell completes: names of presets, methods, models and data sets, and settings with their values.

Names are read from a file in the cache, because importing the modules that define them takes seconds.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from nestling.files import write_whole
from nestling.folders import cache_dir

_Completer = Callable[[str], list[Any]]


def complete(*kinds: str) -> _Completer:
    """Return a function that completes the names of a kind, such as ``presets``; or ``settings``, as KEY=VALUE.

    >>> complete("settings")("local.opt")
    ['local.optimizer=sgd', 'local.optimizer=adam']
    """

    def completions(incomplete: str) -> list[Any]:
        offered: list[Any] = []
        for kind in kinds:
            offered += _settings(incomplete) if kind == "settings" else known_names()[kind]
        return offered

    return completions


def words(*names: str) -> _Completer:
    """Return a function that completes one of a few words."""
    return lambda incomplete: list(names)


def known_names() -> dict[str, list[str]]:
    """Return the names of every kind; from the cache, if the package has not changed since they were written there."""
    file = cache_dir() / "names" / f"{_package_state()}.json"
    with suppress(OSError, ValueError):
        kinds: dict[str, list[str]] = json.loads(file.read_text(encoding="utf-8"))
        return kinds
    names = _names()
    with suppress(OSError):  # of a home that cannot be written to: completing takes longer there
        file.parent.mkdir(parents=True, exist_ok=True)
        for older in file.parent.glob("*.json"):
            older.unlink()
        write_whole(file, json.dumps(names).encode())
    return names


def _bash_key() -> str:
    """Return the key before the word to complete, if bash split KEY=VALUE, as it ends words at an equals sign."""
    if os.environ.get("_NESTLING_COMPLETE") != "complete_bash":
        return ""
    typed = os.environ.get("COMP_WORDS", "").split("\n")[: int(os.environ.get("COMP_CWORD", "0")) + 1]
    if typed[-1] == "=":
        typed.append("")
    return typed[-3] if typed[-2:-1] == ["="] else ""


def _settings(incomplete: str) -> list[Any]:
    """Return settings with their values, or without while several fit: a shell adds a space after the only one."""
    from nestling.settings.reference import reference  # noqa: PLC0415

    if key := _bash_key():
        return _values(key)
    key, equals, _ = incomplete.partition("=")
    if equals:
        return [f"{key}={value}" for value in _values(key)]
    rows = [row for row in reference() if row.name.startswith(incomplete)]
    if len(rows) == 1:
        return [f"{rows[0].name}={value}" for value in _values(rows[0].name)]
    return [(f"{row.name}=", row.meaning.partition("\n")[0].replace("`", "")) for row in rows]


def _values(key: str) -> list[str]:
    """Return the values of a setting that takes one of a few, and otherwise its default."""
    from nestling.cli.settings_reference import written_value  # noqa: PLC0415
    from nestling.settings.reference import choices, reference  # noqa: PLC0415

    named = {"method": "methods", "model.name": "models", "data.name": "datasets"}
    if key in named:
        return known_names()[named[key]]
    return list(choices(key)) or [written_value(row.default) for row in reference() if row.name == key]


def _names() -> dict[str, list[str]]:
    from nestling.data import DATASETS, TEXTS  # noqa: PLC0415
    from nestling.experiment.presets import PRESETS  # noqa: PLC0415
    from nestling.experiment.reproductions.definitions import reproductions  # noqa: PLC0415
    from nestling.fleet import DEVICES  # noqa: PLC0415
    from nestling.methods import names  # noqa: PLC0415
    from nestling.nets import MODELS  # noqa: PLC0415

    kinds: dict[str, Iterable[str]] = {
        "presets": PRESETS,
        "methods": names(),
        "models": MODELS,
        "datasets": [*DATASETS, *TEXTS],
        "reproductions": [reproduction.name for reproduction in reproductions()],
        "devices": DEVICES,
    }
    return {kind: list(all_of_them) for kind, all_of_them in kinds.items()}


def _package_state() -> str:
    """Return a text that changes when a file of the package does."""
    package = Path(__file__).parents[1]
    files = sorted(package.rglob("*.py")) + sorted(package.rglob("*.toml"))
    state = "".join(f"{file} {file.stat().st_mtime_ns}\n" for file in files)
    return hashlib.sha256(state.encode()).hexdigest()[:16]
