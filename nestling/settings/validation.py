"""Settings made of nested msgspec Structs, checked value by value: each refusal is one sentence that names the setting.

A Struct takes anything when it is made in Python, and checks types only when it is read from data. Here both ways go
through the same checks, so that Python and the command line refuse the same values in the same words.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, TypeVar, get_args, get_origin

import msgspec

from nestling.errors import ConfigError, nearest

_DEEPEST = 20  # levels of lists and tables inside an option
_SHOWN = 64  # letters of a value that an error shows

_Kind = TypeVar("_Kind", bound=msgspec.Struct)


def built(kind: type[_Kind], data: Mapping[str, Any], path: str = "") -> _Kind:
    """Return the settings of a table; raise where one is unknown, with the nearest that is known."""
    fields = {name: (type_, table) for name, type_, table, _ in _fields(kind)}
    values: dict[str, Any] = {}
    for key, value in data.items():
        if key not in fields:
            raise ConfigError(f"there is no setting {shown(path + str(key))}{nearest(str(key), fields)}")
        type_, table = fields[key]
        if not table:
            values[key] = _converted(path + key, value, type_)
        elif isinstance(value, Mapping):
            values[key] = built(type_, value, f"{path}{key}.")
        else:
            raise ConfigError(f"the setting {path}{key} is a table of settings, not {shown(value)}")
    return kind(**values)


def check(settings: msgspec.Struct, path: str = "") -> None:
    """Raise where a value is not what its setting takes."""
    for name, kind, table, default in _fields(type(settings)):
        value = getattr(settings, name)
        if value is default:  # most are, and there are thousands of presets
            continue
        if not table:
            _converted(path + name, value, kind)
        elif isinstance(value, kind):
            check(value, f"{path}{name}.")
        else:
            raise ConfigError(f"the setting {path}{name} must be a {kind.__name__}, not {shown(value)}")


@cache
def _fields(kind: type[msgspec.Struct]) -> tuple[tuple[str, Any, bool, Any], ...]:
    """The settings of a table: name, type, whether that is a table itself, default. Finding them takes long."""
    return tuple(
        (field.name, field.type, isinstance(field.type, type) and issubclass(field.type, msgspec.Struct), field.default)
        for field in msgspec.structs.fields(kind)
    )


def _converted(path: str, value: Any, kind: Any) -> Any:
    """Return a value as its setting's type, or raise."""
    try:
        # numbers written without a point are fine where numbers with one are meant
        converted = msgspec.convert(value, kind, strict=True)
    except msgspec.ValidationError as problem:
        if get_origin(kind) is Literal:
            raise ConfigError(
                f"the setting {path} cannot be {shown(value)}{nearest(str(value), get_args(kind))}"
            ) from None
        reason = str(problem).partition(" - at `")[0]
        raise ConfigError(f"the setting {path} cannot be {shown(value)}: {reason[:1].lower()}{reason[1:]}") from None
    except UnicodeEncodeError:  # half a character, from bytes on a command line that are no text
        raise ConfigError(f"the setting {path} cannot be {shown(value)}: it is not a text") from None
    _writable(path, converted)
    return converted


def _writable(path: str, value: Any, depth: int = 0) -> None:
    """Raise where a value cannot be written to config.toml and read again, or is no number that means anything."""
    if depth > _DEEPEST:
        raise ConfigError(f"the setting {path.partition('[')[0]} is nested too deep")
    if isinstance(value, str):
        if value.isascii() and "\0" not in value:
            return
        odd = next((letter for letter in value if letter == "\0" or "\ud800" <= letter <= "\udfff"), None)
        if odd is not None:
            raise ConfigError(f"the setting {path} cannot be {shown(value)}: it holds {odd!r}, which no text may hold")
    elif isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"the setting {path} must be a finite number, not {value!r}")
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            _writable(path, key)
            _writable(f"{path}.{key}", inner, depth + 1)
    elif isinstance(value, list | tuple):
        for place, inner in enumerate(value):
            _writable(f"{path}[{place}]", inner, depth + 1)
    elif isinstance(value, int) and abs(value) >= 2**63:
        raise ConfigError(f"the setting {path} cannot be {shown(value)}: whole numbers have at most 64 bits")
    elif not isinstance(value, int | float):
        raise ConfigError(
            f"the setting {path} cannot be {shown(value)}: settings are numbers, texts, true or false, lists and tables"
        )


def shown(value: Any) -> str:
    """Return a value as error messages show it: on one line, and cut off where it is long.

    >>> shown("x" * 100)
    "'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…"
    """
    try:
        text = " ".join(repr(value).split())
    except ValueError:  # a whole number with more digits than Python writes
        return "a number of thousands of digits"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
