"""`Budget`: what a device can carry, and the one place where budgets are parsed.

A budget is a list of limits, separated by commas; each is a number and a unit, and the unit says what is limited:

==================  ===========================================  =========================
``2 MB``            bytes of the tensors that are stored, sent   B kB MB GB, KiB MiB GiB
``50 MMACs``        multiply-accumulates of one sample, forward  MACs kMACs MMACs GMACs
``100 MB memory``   peak memory of one training step             as of bytes, and ``memory``
``20 ms``           median time of one training step             us ms s
==================  ===========================================  =========================

1 MB is 10⁶ bytes and 1 MiB is 2²⁰. ``≤ 100 MB training memory`` and ``<= 20 ms per step`` are understood, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields

from nestling.errors import BudgetError

GRAMMAR = "such as '2 MB', '50 MMACs', '100 MB memory' or '20 ms', with commas between several"
_BYTES = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_MACS = {"macs": 1, "kmacs": 10**3, "mmacs": 10**6, "gmacs": 10**9}
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_LIMIT = re.compile(
    r"(?:<=|≤)?\s*(\d+(?:\.\d*)?(?:e[+-]?\d{1,2})?|\.\d+)\s*([a-z]+)(?:\s+(?:training\s+)?(memory)|\s+per\s+(step))?",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Budget:
    """Limits of a sub-model; None is no limit.

    Attributes
    ----------
    bytes
        Bytes of all parameters and saved buffers.
    macs
        Multiply-accumulates of the forward pass of one sample.
    memory
        Peak bytes of one training step with plain SGD at the batch in use.
    seconds
        Median seconds of one training step, measured on this machine.

    Examples
    --------
    >>> print(Budget(bytes=2_000_000, seconds=0.02))
    2 MB, 20 ms
    """

    bytes: float | None = None
    macs: float | None = None
    memory: float | None = None
    seconds: float | None = None

    def __str__(self) -> str:
        limits = ((field.name, getattr(self, field.name)) for field in fields(self))
        return ", ".join(written(name, limit, digits=12) for name, limit in limits if limit is not None)


def parse_budget(text: str | Budget | Iterable[str]) -> Budget:
    """Return the budget that a text, or several texts together, describe.

    >>> parse_budget("2 MB, 50 MMACs")
    Budget(bytes=2000000.0, macs=50000000.0, memory=None, seconds=None)
    >>> parse_budget(["100 MB memory", "<= 20 ms"])
    Budget(bytes=None, macs=None, memory=100000000.0, seconds=0.02)
    >>> parse_budget("2 parsecs")
    Traceback (most recent call last):
    nestling.errors.BudgetError: the budget '2 parsecs' cannot be read: write a number and a unit, such as ...
    """
    if isinstance(text, Budget):
        return text
    limits: dict[str, float] = {}
    for whole in [text] if isinstance(text, str) else text:
        if not isinstance(whole, str):
            raise BudgetError(f"a budget is a text, {GRAMMAR}, not {whole!r}")
        for part in whole.split(","):
            name, limit = _limit(part.strip())
            if name in limits:
                raise BudgetError(f"the budget limits {_WHAT[name]} twice: {part.strip()!r} is the second limit")
            limits[name] = limit
    if not limits:
        raise BudgetError(f"a budget needs at least one limit, {GRAMMAR}")
    return Budget(**limits)


def parse_bytes(text: str) -> float:
    """Return a number of bytes: ``2 MB``, ``512 KiB``.

    >>> parse_bytes("1.5 MiB")
    1572864.0
    """
    return _amount(text, "bytes", "2 MB")


def parse_macs(text: str) -> float:
    """Return a number of MACs: ``1.5 GMACs``.

    >>> parse_macs("1.5 GMACs")
    1500000000.0
    """
    return _amount(text, "macs", "1.5 GMACs")


def written(name: str, value: float, digits: int = 4) -> str:
    """Return a limit, or what is compared with it, in the grammar of budgets and with so many digits.

    >>> written("bytes", 1_572_864), written("macs", 39_974_912), written("memory", 1e8), written("seconds", 0.0213)
    ('1.573 MB', '39.97 MMACs', '100 MB memory', '21.3 ms')
    """
    if name == "seconds":
        return f"{value * 1e3:.{digits}g} ms" if value < 1 else f"{value:.{digits}g} s"
    scale, prefix = next(
        ((scale, prefix) for scale, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")) if value >= scale), (1, "")
    )
    return (
        f"{value / scale:.{digits}g} {prefix}{'MACs' if name == 'macs' else 'B'}{' memory' if name == 'memory' else ''}"
    )


_WHAT = {"bytes": "bytes", "macs": "MACs", "memory": "memory", "seconds": "the time of a step"}


def _amount(text: str, name: str, example: str) -> float:
    try:
        limited, limit = _limit(text.strip())
    except BudgetError:
        limited, limit = "", 0.0
    if limited != name:
        raise BudgetError(f"{text!r} is no number of {_WHAT[name]}: write one such as {example!r}")
    return limit


def _limit(text: str) -> tuple[str, float]:
    match = _LIMIT.fullmatch(text)
    unit = match[2].lower() if match else ""
    units: dict[str, Mapping[str, float]] = {"bytes": _BYTES, "macs": _MACS, "seconds": _SECONDS}
    name = next((name for name, known in units.items() if unit in known), None)
    if match is None or name is None or (match[3] and name != "bytes") or (match[4] and name != "seconds"):
        raise BudgetError(f"the budget {text!r} cannot be read: write a number and a unit, {GRAMMAR}")
    limit = float(match[1]) * units[name][unit]
    if not limit > 0:
        raise BudgetError(f"the budget {text!r} must be above 0")
    return "memory" if match[3] else name, limit
