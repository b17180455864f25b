"""Experiments in TOML files."""

from __future__ import annotations

from pathlib import Path

from nestling.errors import ConfigError
from nestling.settings.structs import Experiment


def from_file(path: str | Path) -> Experiment:
    """Read an experiment from a TOML file."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as problem:
        raise ConfigError(f"{str(path)!r} cannot be read: {problem.strerror}") from None
    except UnicodeDecodeError as problem:
        raise ConfigError(f"{str(path)!r} is not a text in UTF-8: byte {problem.start} is wrong") from None
    if not text.strip():
        raise ConfigError(f'{str(path)!r} is empty: it should hold settings, such as method = "heterofl"')
    try:
        return Experiment.from_toml(text)
    except ConfigError as problem:
        raise ConfigError(f"{path}: {problem}") from None
