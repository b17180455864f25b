"""Check numbers that callers give, with one error message for every kind of mistake."""

from __future__ import annotations

import math
import numbers
import operator

import numpy as np

from nestling.errors import FleetError, NestlingError


def whole(
    name: str,
    value: object,
    least: int | None = None,
    most: int | None = None,
    error: type[NestlingError] = FleetError,
) -> int:
    """Return `value` as a plain `int`; raise `error` unless it is a whole number within the bounds.

    Streams are named by value *and* type, so NumPy's integers must not reach them.

    >>> whole("the client", np.int64(7), 0, 9)
    7
    """
    try:
        number = None if isinstance(value, bool | np.bool_) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or (least is not None and number < least) or (most is not None and number > most):
        bounds = "" if least is None else f" of at least {least}" if most is None else f" from {least} to {most}"
        raise error(f"{name} must be a whole number{bounds}, not {value!r}")
    return number


def real(
    name: str, value: object, *, above: float = -math.inf, least: float = -math.inf, most: float = math.inf
) -> float:
    """Return `value` as a plain `float`; raise `FleetError` unless it is a finite number within the bounds.

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
        raise FleetError(f"{name} must be a finite number {' and '.join(bounds)}, not {value!r}")
    return number


def parse_number(text: str) -> float | str:
    """Return the number or fraction that a text holds, or the text itself if it holds none.

    Python's own `Fraction` would take minutes for ``1e999999999``.

    >>> parse_number("0.3"), parse_number("1/4"), parse_number("many")
    (0.3, 0.25, 'many')
    """
    above, slash, below = text.partition("/")
    try:
        return float(above) / float(below) if slash else float(text)
    except (ValueError, ZeroDivisionError):
        return text


def decimal(number: float) -> str:
    """Return the shortest decimal text that is exactly this number, without an exponent.

    >>> decimal(1.0), decimal(0.3), decimal(1e-5)
    ('1', '0.3', '0.00001')
    """
    return np.format_float_positional(number, trim="-")
