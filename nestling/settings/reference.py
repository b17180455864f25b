"""The reference of settings: name, meaning, default and accepted values, from types and docstrings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec

from nestling.docstrings import entries
from nestling.errors import ConfigError, nearest
from nestling.settings.checks import LIMITS, RANGES
from nestling.settings.structs import Experiment

_KINDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


@dataclass(frozen=True)
class SettingRow:
    """A setting.

    Attributes
    ----------
    name
        Its dotted name.
    meaning
        What it decides, in Markdown.
    default
        Its value in an experiment that does not set it.
    accepted
        The values that it takes, in words.
    """

    name: str
    meaning: str
    default: Any
    accepted: str


def reference() -> list[SettingRow]:
    """Return all settings, those of the experiment itself first.

    >>> rows = {row.name: row for row in reference()}
    >>> rows["local.lr"]
    SettingRow(name='local.lr', meaning='The learning rate.', default=0.1, accepted='a number above 0')
    >>> rows["local.optimizer"].accepted, rows["rounds"].accepted
    ('sgd or adam', 'a whole number from 1 to 999,999')
    """
    return sorted(_rows(Experiment), key=lambda row: "." in row.name)


def tables() -> dict[str, str]:
    """Return the tables of settings with their meaning; the settings outside of any table have the name "".

    >>> tables()["local"]
    'How a client trains.'
    """
    described = entries(Experiment.__doc__, "Attributes")
    return {"": "The experiment itself."} | {
        field.name: described[field.name] for field in msgspec.structs.fields(Experiment) if _is_table(field.type)
    }


def settings_called(name: str) -> list[SettingRow]:
    """Return the settings of a table, or the one setting of this name.

    >>> [row.name for row in settings_called("model")]
    ['model.name', 'model.options', 'model.width', 'model.weights']
    >>> settings_called("local.rl")
    Traceback (most recent call last):
        ...
    nestling.errors.ConfigError: there is no setting and no table 'local.rl'; did you mean 'local.lr' or ...
    """
    rows = reference()
    chosen = [row for row in rows if name in (row.name, row.name.partition(".")[0])]
    if not chosen:
        known = [*filter(None, tables()), *(row.name for row in rows)]
        raise ConfigError(f"there is no setting and no table {name!r}{nearest(name, known)}")
    return chosen


def choices(name: str) -> tuple[str, ...]:
    """Return the values of a setting that takes one of a few, and nothing for any other.

    >>> choices("local.optimizer"), choices("data.public_from_test"), choices("local.lr")
    (('sgd', 'adam'), ('false', 'true'), ())
    """
    kind: Any = Experiment
    for part in name.split("."):
        fields = {field.name: field.type for field in msgspec.structs.fields(kind)} if _is_table(kind) else {}
        kind = fields.get(part)
    if get_origin(kind) is Literal:
        return get_args(kind)
    return ("false", "true") if kind is bool else ()


def _is_table(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _rows(kind: type[msgspec.Struct], path: str = "") -> Iterable[SettingRow]:
    described = entries(kind.__doc__, "Attributes")
    for field in msgspec.structs.fields(kind):
        name = path + field.name
        if _is_table(field.type):
            yield from _rows(field.type, f"{name}.")
        else:
            default = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
            yield SettingRow(name, described.get(field.name, ""), default, accepted(field.type, name))


def accepted(kind: Any, name: str = "") -> str:
    """Return the values that a setting or an option of some type takes, in words; `name` is that of a setting.

    >>> accepted(bool), accepted(tuple[float, ...]), accepted(Literal["a", "b"])
    ('true or false', 'a list of numbers', 'a or b')
    """
    metas: tuple[Any, ...] = ()
    if get_origin(kind) is Annotated:
        kind, *metas = get_args(kind)
    if described := [meta.description for meta in metas if meta.description]:
        return described[0]
    if get_origin(kind) is Literal:
        *firsts, last = get_args(kind)
        return f"{', '.join(firsts)} or {last}"
    if get_origin(kind) is tuple:
        return f"a list of {_KINDS[get_args(kind)[0]].partition(' ')[2]}s"
    if get_origin(kind) is dict:
        return f"{name}.NAME=VALUE for each option"
    words = [_KINDS[kind], *(word for meta in metas for word in _bounds(meta))]
    if name in RANGES:
        words.append(RANGES[name][1])
    if name in LIMITS:
        words.append(f"at most {LIMITS[name]:,}")
    return f"{words[0]} {', '.join(words[1:])}".strip()


def _bounds(meta: msgspec.Meta) -> list[str]:
    """Return the bounds of a number in words."""
    if meta.ge is not None and meta.le is not None:
        return [f"from {meta.ge:,} to {meta.le:,}"]
    bounds = {"from": meta.ge, "above": meta.gt, "at most": meta.le, "below": meta.lt}
    return [f"{word} {bound:,}" for word, bound in bounds.items() if bound is not None]
