"""Levels of clients from a file: which client has which level, budget or device.

``fleet.levels=fleet.toml`` (or ``.json``, ``.csv``) names a file of rows. A row says which clients it is about and what
they can carry:

=====================================  ==============================================================================
``clients = "0-9, 15"`` or ``share``   client numbers, or a share of all clients; without either, equal shares
``level = "c"``                        a level
``budget = "2 MB, 50 MMACs"``          the largest level of the method whose sub-model meets the budget
``memory``, ``speed``, ``down``,       a device: bytes, MACs per second, bytes per second; its level is the largest
``up``, ``available`` (1.0)            of `levels` (top of the file; a to e) that fits its memory, and rounds are timed
=====================================  ==============================================================================

In TOML the rows are ``[[device]]`` tables, or a table ``[clients]`` of ``"0-9" = "c"`` or ``"0-9" = "2 MB"``; in JSON a
list of objects, or an object like the TOML; in CSV lines below a header. Rows may have a `name`, and a table `fit`, in
which ``nestling fit --out`` keeps what it found.

Without a file, ``fleet.levels`` itself may list budgets, separated by semicolons: ``2 MB; 500 kB, 20 MMACs``.
"""

from __future__ import annotations

import csv
import io
import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nestling.budgets import Budget, parse_budget, parse_bytes, parse_macs
from nestling.errors import BudgetError, FleetError, nearest
from nestling.fleet.apportion import deal, normalise
from nestling.fleet.devices import Device
from nestling.fleet.levels import LEVELS, Level, parse_level, parse_levels
from nestling.number_checks import parse_number, real
from nestling.settings.checks import LEVELS_FILES

_DEVICE = ("memory", "speed", "down", "up")
_KEYS = ("name", "clients", "share", "level", "budget", *_DEVICE, "available", "fit")
_UNIT = re.compile(r"\d\s*[a-z]*(B|MACs|s)\b", re.IGNORECASE)  # of a budget; levels are letters and plain numbers
_RANGE = re.compile(r"(\d{1,8})(?:\s*-\s*(\d{1,8}))?")


@dataclass(frozen=True)
class LevelRow:
    """A row of a file of levels: some clients, and their level, budget or device.

    Attributes
    ----------
    name
        What the row is called in messages and tables.
    clients, share
        Ranges of client numbers with their ends, or a share of all clients; at most one of them.
    level, budget, device
        What these clients can carry: exactly one of the three.
    """

    name: str
    clients: tuple[tuple[int, int], ...]
    share: float | None
    level: Level | None
    budget: Budget | None
    device: Device | None


@dataclass(frozen=True)
class LevelsFile:
    """A file of levels.

    Attributes
    ----------
    name, text
        Its name and its content.
    rows
        The rows.
    levels
        The levels among which devices choose.
    """

    name: str
    text: str = field(repr=False)
    rows: tuple[LevelRow, ...] = ()
    levels: tuple[Level, ...] = ()

    @property
    def devices(self) -> bool:
        """Whether the rows describe devices."""
        return self.rows[0].device is not None

    def rows_of(self, clients: int, seed: int) -> NDArray[np.integer[Any]]:
        """Return the number of the row of every client; shares are dealt as those of `Fleet` are.

        >>> parse_levels_file("f.csv", "share,level" + chr(10) + "1,a" + chr(10) + "3,e").rows_of(4, seed=0)
        array([...], dtype=uint8)
        """
        if not self.rows[0].clients:
            shares = normalise(self.rows, [row.share for row in self.rows], lambda row: row.name)
            return deal([share for _, share in shares], clients, seed, "levels")
        numbers = np.full(clients, -1, dtype=np.int32)
        for number, row in enumerate(self.rows):
            for first, last in row.clients:
                if last >= clients:
                    raise FleetError(
                        f"{self.name} names client {last}, but fleet.clients={clients} has clients 0 to {clients - 1}"
                    )
                if (numbers[first : last + 1] >= 0).any():
                    twice = first + int(np.argmax(numbers[first : last + 1] >= 0))
                    raise FleetError(f"{self.name} names client {twice} twice: give each client one row")
                numbers[first : last + 1] = number
        missing = np.flatnonzero(numbers < 0)
        if len(missing):
            raise FleetError(f"{self.name} has no row for {len(missing)} of {clients} clients, such as {missing[0]}")
        return numbers


def is_levels_file(levels: str) -> bool:
    """Return whether a setting `fleet.levels` names a file.

    >>> is_levels_file("fleet.toml"), is_levels_file("a-b-c")
    (True, False)
    """
    return levels.strip().lower().endswith(LEVELS_FILES)


def is_list_of_budgets(levels: str) -> bool:
    """Return whether a setting `fleet.levels` names budgets, such as ``2 MB; 500 kB, 20 MMACs``.

    >>> is_list_of_budgets("2 MB; 500 kB, 20 MMACs"), is_list_of_budgets("2 MB:0.3; c:0.7"), is_list_of_budgets("a-c")
    (True, True, False)
    """
    return ";" in levels or bool(_UNIT.search(levels))


def parse_list_of_budgets(levels: str) -> LevelsFile:
    """Return the rows of budgets, or levels, that a setting `fleet.levels` lists: in equal shares, or with shares.

    >>> [(str(row.budget), row.share) for row in parse_list_of_budgets("2 MB:0.3; 500 kB, 20 MMACs:0.7").rows]
    [('2 MB', 0.3), ('500 kB, 20 MMACs', 0.7)]
    """
    rows = []
    for number, part in enumerate(levels.strip().strip(";").split(";"), 1):
        what, colon, share = part.strip().partition(":")
        rows.append(
            _row(f"part {number} of fleet.levels", _carried(what.strip()) | ({"share": share} if colon else {}))
        )
    return LevelsFile("fleet.levels", "", tuple(rows), parse_levels(list(LEVELS)))


def read_levels_file(path: str) -> LevelsFile:
    """Read a file of levels; raise `FleetError`, with the row, where something is wrong."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as problem:
        raise FleetError(f"the file of fleet.levels, {path!r}, cannot be read: {problem.strerror}") from None
    except UnicodeDecodeError as problem:
        raise FleetError(f"{path!r} is not a text in UTF-8: byte {problem.start} is wrong") from None
    return parse_levels_file(path, text)


def parse_levels_file(name: str, text: str) -> LevelsFile:
    """Return a file of levels from its content; its format follows from the end of its name.

    >>> file = parse_levels_file("fleet.toml", '[clients]' + chr(10) + '"0-9" = "c"' + chr(10) + '10 = "2 MB"')
    >>> [(row.clients, row.level, str(row.budget)) for row in file.rows]
    [(((0, 9),), Level(name='c', ratio=0.25), 'None'), (((10, 10),), None, '2 MB')]
    """
    raw, levels = _raw_rows(name, text)
    if not raw:
        raise FleetError(f"{name} has no rows: give it a [[device]] with a level, a budget or a memory")
    rows = tuple(_row(f"row {number} of {name}", values) for number, values in enumerate(raw, 1))
    if len({bool(row.clients) for row in rows}) > 1:
        raise FleetError(f"{name} names the clients of some rows and not of others: name them in all rows or in none")
    if len({row.device is None for row in rows}) > 1:
        raise FleetError(f"{name} describes devices in some rows and levels or budgets in others: use one of the two")
    candidates = parse_levels(list(LEVELS) if levels is None else levels)
    return LevelsFile(name, text, rows, candidates)


def _raw_rows(name: str, text: str) -> tuple[list[Any], Any]:
    """Return the rows of a file as they are written, and its levels."""
    suffix = Path(name).suffix.lower()
    try:
        if suffix == ".csv":
            lines = csv.DictReader(io.StringIO(text), skipinitialspace=True, strict=True)
            return [{key: value for key, value in line.items() if value not in (None, "")} for line in lines], None
        data = tomllib.loads(text) if suffix == ".toml" else json.loads(text)
    except (csv.Error, ValueError, RecursionError) as problem:
        raise FleetError(f"{name} is not a {suffix[1:].upper()} file: {' '.join(str(problem).split())}") from None
    if isinstance(data, list):
        return data, None
    if not isinstance(data, Mapping):
        raise FleetError(f"{name} must hold rows, not {data!r}")
    if suffix == ".json" and not data.keys() & {"device", "clients", "levels"}:
        data = {"clients": data}
    unknown = sorted(data.keys() - {"device", "clients", "levels"})
    if unknown:
        raise FleetError(f"{name} holds {unknown[0]!r}{nearest(unknown[0], ('device', 'clients', 'levels'))}")
    rows, by_client = data.get("device", []), data.get("clients", {})
    if not isinstance(rows, list) or not isinstance(by_client, Mapping):
        raise FleetError(f"{name} must hold rows as [[device]] tables, or a table [clients]")
    return [*rows, *({"clients": key, **_carried(value)} for key, value in by_client.items())], data.get("levels")


def _carried(value: Any) -> dict[str, Any]:
    """Return what a client can carry, given as a level or as a budget."""
    try:
        parse_level(value)
    except FleetError:
        return {"budget": value}
    return {"level": value}


def _row(place: str, values: Any) -> LevelRow:
    if not isinstance(values, Mapping):
        raise FleetError(f"{place} must be a table of settings, not {values!r}")
    if "client" in values:
        values = {("clients" if key == "client" else key): value for key, value in values.items()}
    unknown = [str(key) for key in values if key not in _KEYS]
    if unknown:
        raise FleetError(f"{place} has {unknown[0]!r}{nearest(unknown[0], _KEYS)}")
    if "clients" in values and "share" in values:
        raise FleetError(f"{place} names its clients and gives a share: leave one out")
    device = any(key in values for key in _DEVICE)
    if device + ("level" in values) + ("budget" in values) != 1:
        raise FleetError(
            f"{place} must have one of level, budget (such as '2 MB'), or a device's memory, speed, down and up"
        )
    name = str(values.get("name", place))
    try:
        share = values.get("share")
        return LevelRow(
            name=name,
            clients=_ranges(values["clients"]) if "clients" in values else (),
            share=None if share is None else real("the share", _number(share), above=0),
            level=parse_level(_number(values["level"])) if "level" in values else None,
            budget=_budget(values["budget"]) if "budget" in values else None,
            device=_device(name, values) if device else None,
        )
    except (FleetError, BudgetError) as problem:
        raise FleetError(f"{place}: {problem}") from None


def _budget(text: Any) -> Budget:
    budget = parse_budget(text)
    if budget.seconds is not None:
        raise BudgetError(
            f"a limit of time ({text}) gives other levels on every machine, and so other figures: find the level with "
            "'nestling fit --by width' and write level = …"
        )
    return budget


def _device(name: str, values: Mapping[str, Any]) -> Device:
    missing = [key for key in _DEVICE if key not in values]
    if missing:
        raise FleetError(f"a device needs {', '.join(_DEVICE)}, and {missing[0]!r} is missing")
    read = {"memory": parse_bytes, "speed": parse_macs, "down": parse_bytes, "up": parse_bytes}
    texts = {key: _number(values.get(key, 1)) for key in (*_DEVICE, "available")}
    amounts = {
        key: read[key](value) if isinstance(value, str) and key in read else value for key, value in texts.items()
    }
    return Device(name, **amounts)


def _number(value: Any) -> Any:
    return parse_number(value) if isinstance(value, str) else value


def _ranges(value: Any) -> tuple[tuple[int, int], ...]:
    """Return the ranges of client numbers in ``7`` or ``"0-9, 15"``.

    >>> _ranges("0-9, 15"), _ranges(7)
    (((0, 9), (15, 15)), ((7, 7),))
    """
    ranges = []
    for part in str(value).split(",") if not isinstance(value, bool) else [""]:
        match = _RANGE.fullmatch(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last:
            raise FleetError(f"clients are numbers from 0 and ranges such as '0-9, 15', not {value!r}")
        ranges.append((first, last))
    return tuple(ranges)
