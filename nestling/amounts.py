"""Format counts, bytes and times with few digits and a unit."""

from __future__ import annotations

BYTES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
COUNTS = ("", "k", "M", "G", "T", "P", "E")


def unit(largest: float, units: tuple[str, ...]) -> tuple[float, str]:
    """Return the factor and the name of the unit in which `largest` has one to three digits before the point.

    >>> unit(6_227_496, BYTES), unit(999, COUNTS)
    ((1048576, 'MiB'), (1, ''))
    """
    base = 1024 if units is BYTES else 1000
    power = 0
    while largest >= 999.5 * base**power and power < len(units) - 1:
        power += 1
    return base**power, units[power]


def amount(value: float, units: tuple[str, ...] = COUNTS) -> str:
    """Return an amount with three digits and its unit.

    >>> amount(39_974_912), amount(6_227_496, BYTES), amount(12, BYTES)
    ('40.0 M', '5.94 MiB', '12 B')
    """
    size, name = unit(value, units)
    scaled = value / size
    digits = 0 if size == 1 or scaled >= 99.95 else 1 if scaled >= 9.995 else 2
    return f"{scaled:.{digits}f} {name}".strip()


def duration(seconds: float) -> str:
    """Return a time in suitable units.

    >>> duration(9.87), duration(45.3), duration(75), duration(7330), duration(200_000)
    ('9.9 s', '45 s', '1 min 15 s', '2 h 2 min', '2 d 7 h')
    """
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 172_800:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3600} h"
