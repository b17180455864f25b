"""Settings of a part as text: ``parts=secagg:size=16:bits=64``."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, TypeVar, get_type_hints

import msgspec

from nestling.errors import MethodError, nearest
from nestling.methods.part import Part
from nestling.settings.reference import accepted

_P = TypeVar("_P", bound=Part)


def with_settings(part: _P, name: str, text: str) -> _P:
    """Return a part with the settings of a text such as ``size=16:bits=64``; `name` is that of the part in messages.

    >>> from nestling.methods.parts.proximal import Proximal
    >>> with_settings(Proximal(0.1), "fedprox", "mu=0.5")
    Proximal(mu=0.5)
    """
    hints = get_type_hints(type(part))
    known = [field.name for field in fields(part)]  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for item in filter(None, text.split(":")):
        key, equals, value = item.partition("=")
        if not equals or key not in known:
            example = f"parts={name}:{known[0]}={getattr(part, known[0])}"
            raise MethodError(f"{name} has no setting {item!r}{nearest(key, known)}: write {example}")
        try:
            values[key] = msgspec.convert(value, hints[key], strict=False)
        except msgspec.ValidationError:
            raise MethodError(f"{name}'s {key} cannot be {value!r}: accepted is {accepted(hints[key])}") from None
    return replace(part, **values)  # type: ignore[type-var]
