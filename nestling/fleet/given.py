"""Numbers as callers give them, checked in one place so that each refusal is one sentence."""

from __future__ import annotations

import math
import numbers
import operator

import numpy as np

from nestling.errors import FleetError


def whole(what: str, value: object, least: int, most: int | None = None) -> int:
    """Return a whole number between two bounds as a plain `int`.

    Streams are named by value *and* type, so NumPy's integers must not reach them.

    >>> whole("the client", np.int64(7), 0, 9)
    7
    """
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = least - 1
    if isinstance(value, bool | np.bool_) or number < least or (most is not None and number > most):
        accepted = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise FleetError(f"{what} must be a whole number {accepted}, not {value!r}")
    return number


def real(
    what: str, value: object, *, above: float = -math.inf, least: float = -math.inf, most: float = math.inf
) -> float:
    """Return a finite number between bounds as a plain `float`.

    >>> real("rho", 1, least=0, most=1)
    1.0
    """
    number = math.nan
    if not isinstance(value, bool) and isinstance(value, numbers.Real):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
    if not (math.isfinite(number) and above < number and least <= number <= most):
        bounds = [f"above {above:g}"] * (above > -math.inf) + [f"at least {least:g}"] * (least > -math.inf)
        bounds += [f"at most {most:g}"] * (most < math.inf)
        raise FleetError(f"{what} must be a finite number {' and '.join(bounds)}, not {value!r}")
    return number


def read(text: str) -> float | str:
    """Return the number or fraction that a text says, or the text itself where it says none.

    Python's own `Fraction` would take minutes over ``1e999999999``.

    >>> read("0.3"), read("1/4"), read("many")
    (0.3, 0.25, 'many')
    """
    above, slash, below = text.partition("/")
    try:
        return float(above) / float(below) if slash else float(text)
    except (ValueError, ZeroDivisionError):
        return text


def written(number: float) -> str:
    """Return the shortest decimal that says exactly this number, without an exponent.

    >>> written(1.0), written(0.3), written(1e-5)
    ('1', '0.3', '0.00001')
    """
    return np.format_float_positional(number, trim="-")
