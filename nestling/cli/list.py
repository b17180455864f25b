"""``nestling list KIND``: the available methods, models, datasets, presets, reproductions and devices."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nestling.budgets import written
from nestling.cli.completion import words as complete_words
from nestling.cli.screen import AsJson, next_step, out, print_json, print_table, working
from nestling.errors import NestlingError, nearest

if TYPE_CHECKING:
    from nestling.cli.table_layout import Side

Row = dict[str, Any]


@dataclass(frozen=True)
class Kind:
    """What can be listed.

    Attributes
    ----------
    rows
        Returns objects with the same keys, as --json prints them.
    columns
        The headings of the table, with their sides.
    cells
        Returns the texts of a row by heading.
    least
        Headings in the order in which their columns are left out of a narrow table.
    next
        What to do with a name, as a command.
    """

    rows: Callable[[], list[Row]]
    columns: dict[str, Side]
    cells: Callable[[Row], Row]
    least: tuple[str, ...] = ()
    next: str = ""


def _models() -> list[Row]:
    import torch  # noqa: PLC0415

    from nestling import nets  # noqa: PLC0415

    rows = []
    for name, entry in nets.MODELS.items():
        with torch.device("meta"):  # shapes without values: counting takes no memory
            count = sum(parameter.numel() for parameter in nets.build(name).parameters())
        shape = list(nets.example(name, batch=1)[0].shape[1:])
        rows.append({"name": name, "parameters": count, "input": shape, "about": entry.about})
    return rows


def _methods() -> list[Row]:
    from nestling.methods import registry  # noqa: PLC0415

    return [
        {
            "name": name,
            "options": ", ".join(registry.options(name)) or "–",
            "about": registry.about(name),
            "described_options": registry.described_options(name),
        }
        for name in registry.METHODS
    ]


def _datasets() -> list[Row]:
    from nestling.data import DATASETS, TEXTS  # noqa: PLC0415

    images = [{"name": name, "about": source.about} for name, source in DATASETS.items()]
    return images + [{"name": name, "about": text.about} for name, text in TEXTS.items()]


def _presets() -> list[Row]:
    from nestling.experiment.presets import rows  # noqa: PLC0415

    return rows()


def _reproductions() -> list[Row]:
    from nestling.experiment.reproductions.overview import overview  # noqa: PLC0415

    return overview()


def _reproduction_cells(row: Row) -> Row:
    from nestling.experiment.reproductions.overview import cells  # noqa: PLC0415

    return cells(row)


def _devices() -> list[Row]:
    from nestling.fleet import DEVICES  # noqa: PLC0415

    return [asdict(device) for device in DEVICES.values()]


def _device_cells(device: Row) -> Row:
    return {
        "name": device["name"],
        "memory": written("bytes", device["memory"]),
        "speed": f"{written('macs', device['speed'])}/s",
        "down": f"{written('bytes', device['down'])}/s",
        "up": f"{written('bytes', device['up'])}/s",
        "online": f"{device['available']:.0%}",
    }


def _named(*figures: str, **texts: Side) -> dict[str, Side]:
    columns: dict[str, Side] = {"name": "left"}
    return columns | texts | dict.fromkeys(figures, "right")


_ABOUT: dict[str, Side] = {"name": "left", "about": "text"}
_NAMES: dict[str, Side] = {"name": "left", "method": "left", "data": "left", "model": "left", "levels": "left"}

KINDS: dict[str, Kind] = {
    "methods": Kind(_methods, _ABOUT, dict, next="nestling list methods {name}   # its options"),
    "models": Kind(
        _models,
        {"name": "left", "parameters": "right", "input": "right", "about": "text"},
        lambda row: row | {"parameters": f"{row['parameters']:,}", "input": "×".join(map(str, row["input"]))},
        least=("input",),
        next="nestling cost --model {name}",
    ),
    "datasets": Kind(_datasets, _ABOUT, dict, next="nestling data show {name}"),
    "presets": Kind(
        _presets,
        _NAMES | {"rounds": "right", "repeats": "text"},
        lambda row: row | {"rounds": f"{row['rounds']:,}"},
        least=("method", "model", "data", "levels", "rounds"),
        next="nestling run {name}",
    ),
    "reproductions": Kind(
        _reproductions,
        _named("rows", "laptop", "evening", "paper", where="text", data="text"),
        _reproduction_cells,
        least=("data", "rows"),
        next="nestling reproduce {name} --dry-run",
    ),
    "devices": Kind(
        _devices,
        _named("memory", "speed", "down", "up", "online"),
        _device_cells,
        next="nestling run heterofl-digits fleet.devices={name}:6,laptop:1",
    ),
}


def list_command(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND", help=f"What to list: {', '.join(KINDS)}.", autocompletion=complete_words(*KINDS)
        ),
    ],
    words: Annotated[
        list[str] | None, typer.Argument(metavar="WORD", help="Show only names that contain all these words.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List methods, models, datasets, presets, reproductions or devices.

    Methods that are named are explained with their options.
    """
    if kind not in KINDS:
        raise NestlingError(f"there is no list of {kind!r}{nearest(kind, KINDS)}")
    listed = KINDS[kind]
    with working(f"reading the {kind}"):
        rows = [row for row in listed.rows() if all(word in row["name"] for word in words or [])]
    if not rows:
        raise NestlingError(f"none of the {kind} has {' and '.join(map(repr, words or []))} in its name")
    if as_json:
        print_json(rows)
        return
    if kind == "methods" and words:
        _print_methods(rows)
        return
    cells = [listed.cells(row) for row in rows]
    print_table(listed.columns, [[row[key] for key in listed.columns] for row in cells], least=listed.least)
    if sys.stdout.isatty():  # not where the names go on to other programs
        next_step(listed.next.format(name=rows[0]["name"]))


def _print_methods(rows: Sequence[Row]) -> None:
    """Print methods with their options."""
    from rich.text import Text  # noqa: PLC0415

    from nestling.cli.settings_reference import described_lines  # noqa: PLC0415

    console = out()
    for place, row in enumerate(rows):
        console.print(("\n" if place else "") + row["about"], style="bold")
        for option in row["described_options"]:
            name = f"options.{option['name']}"
            first, meaning = described_lines(option["default"], option["accepted"], option["meaning"], console.width)
            console.print(Text.assemble((name, "cyan"), (first, "dim")), soft_wrap=True)
            console.print(meaning, soft_wrap=True)
        if not row["described_options"]:
            console.print("it has no options", style="dim")
        next_step(f"nestling run {row['name']}-digits")
