"""``nestling list KIND``: the available methods, models, datasets, presets, reproductions and devices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated, Any, Literal

import typer

from nestling.budgets import written
from nestling.cli.screen import AsJson, print_json, print_table, working
from nestling.errors import NestlingError, nearest


def _models() -> list[dict[str, Any]]:
    import torch  # noqa: PLC0415

    from nestling import nets  # noqa: PLC0415

    rows = []
    for name, entry in nets.MODELS.items():
        with torch.device("meta"):  # shapes without values: counting takes no memory
            count = sum(parameter.numel() for parameter in nets.build(name).parameters())
        shape = list(nets.example(name, batch=1)[0].shape[1:])
        rows.append({"name": name, "parameters": count, "input": shape, "about": entry.about})
    return rows


def _methods() -> list[dict[str, Any]]:
    from nestling.methods import registry  # noqa: PLC0415

    return [
        {"name": name, "options": ", ".join(registry.options(name)) or "–", "about": registry.about(name)}
        for name in registry.METHODS
    ]


def _datasets() -> list[dict[str, Any]]:
    from nestling.data import DATASETS, TEXTS  # noqa: PLC0415

    images = [{"name": name, "about": source.about} for name, source in DATASETS.items()]
    return images + [{"name": name, "about": text.about} for name, text in TEXTS.items()]


def _presets() -> list[dict[str, Any]]:
    from nestling.experiment.presets import rows  # noqa: PLC0415

    return rows()


def _reproductions() -> list[dict[str, Any]]:
    from nestling.experiment.reproductions.overview import overview  # noqa: PLC0415

    return overview()


def _devices() -> list[dict[str, Any]]:
    from nestling.fleet import DEVICES  # noqa: PLC0415

    return [asdict(device) for device in DEVICES.values()]


def _device_cells(device: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": device["name"],
        "memory": written("bytes", device["memory"]),
        "speed": f"{written('macs', device['speed'])}/s",
        "down": f"{written('bytes', device['down'])}/s",
        "up": f"{written('bytes', device['up'])}/s",
        "online": f"{device['available']:.0%}",
    }


# What can be listed → a function that returns its rows: objects with the same keys, as --json prints them.
KINDS: dict[str, Callable[[], list[dict[str, Any]]]] = {
    "methods": _methods,
    "models": _models,
    "datasets": _datasets,
    "presets": _presets,
    "reproductions": _reproductions,
    "devices": _devices,
}


def list_command(
    kind: Annotated[str, typer.Argument(metavar="KIND", help=f"What to list: {', '.join(KINDS)}.")],
    words: Annotated[
        list[str] | None, typer.Argument(metavar="WORD", help="Show only names that contain all these words.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the available methods, models, datasets, presets, reproductions or simulated devices."""
    if kind not in KINDS:
        raise NestlingError(f"there is no list of {kind!r}{nearest(kind, KINDS)}")
    with working(f"reading the {kind}"):
        rows = [row for row in KINDS[kind]() if all(word in row["name"] for word in words or [])]
    if not rows:
        raise NestlingError(f"none of the {kind} has {' and '.join(map(repr, words or []))} in its name")
    if as_json:
        print_json(rows)
        return
    if kind == "reproductions":
        from nestling.experiment.reproductions.overview import cells  # noqa: PLC0415

        rows = [cells(row) for row in rows]
    if kind == "devices":
        rows = [_device_cells(row) for row in rows]
    columns: dict[str, Literal["left", "right"]] = {
        key: "right" if isinstance(value, int | list) else "left" for key, value in rows[0].items()
    }
    print_table(columns, [[_cell(value) for value in row.values()] for row in rows])


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return "×".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) else str(value)
