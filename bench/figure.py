"""What a benchmark finds: figures with their bounds, and tables."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """One measurement: `value` in `unit`, and the bound that it should keep, where there is one.

    The value is None where nothing could be measured; the note says why.
    """

    name: str
    value: float | None
    unit: str
    bound: str = ""
    ok: bool = True
    note: str = ""


@dataclass(frozen=True)
class Table:
    """Numbers beside each other: the first column names the rows; None stands where nothing was measured."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[float | None, ...]], ...]
    note: str = ""
