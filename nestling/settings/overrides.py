"""Settings as words on a command line: ``local.lr=0.1``."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from typing import Any

from nestling.errors import ConfigError, nearest
from nestling.settings.validation import shown


def put(data: dict[str, Any], key: str, value: Any) -> None:
    """Change one of nested settings, by its dotted name."""
    place: Any = data
    *folders, last = key.split(".")
    for folder in folders:
        if not isinstance(place, dict) or folder not in place:
            raise ConfigError(f"there is no setting {key!r}{nearest(folder, place)}")
        place = place[folder]
    if not isinstance(place, dict):
        raise ConfigError(f"there is no setting {key!r}: {'.'.join(folders)} is a single value")
    place[last] = value


def flattened(settings: Mapping[str, Any], table: str = "") -> dict[str, Any]:
    """Return nested settings by their dotted names.

    >>> flattened({"seed": 3, "local": {"lr": 0.1}})
    {'seed': 3, 'local.lr': 0.1}
    """
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        flat |= flattened(value, f"{table}{key}.") if isinstance(value, Mapping) else {table + key: value}
    return flat


def with_one_amount(local: Any, given: Collection[str]) -> Any:
    """Return the settings of local training with ``epochs=0`` if only ``steps`` was given, and the other way round.

    >>> with_one_amount({"epochs": 5, "steps": 20}, given=["steps"])
    {'epochs': 0, 'steps': 20}
    """
    for name, other in (("epochs", "steps"), ("steps", "epochs")):
        if isinstance(local, Mapping) and name in given and other not in given and local[name] != 0:
            return {**local, other: 0}
    return local


def as_value(text: str) -> Any:
    """Read a value as TOML would, and as plain text where it is not TOML."""
    text = text.strip()
    try:
        parsed = tomllib.loads(f"value = {text}")
    except RecursionError:
        raise ConfigError(f"the value {shown(text)} is nested too deep") from None
    except ValueError:  # not TOML, or a number with more digits than Python reads
        return text
    return parsed["value"] if parsed.keys() == {"value"} else text  # a line break may not bring in other settings
