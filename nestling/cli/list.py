"""``nestling list KIND``: what there is to choose from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

import typer

from nestling.cli.screen import print_json, print_table, working
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


# What can be listed, each with the function that gives its rows: objects with the same keys, as --json prints them.
KINDS: dict[str, Callable[[], list[dict[str, Any]]]] = {
    "models": _models,
}


def list_command(
    kind: Annotated[str, typer.Argument(metavar="KIND", help=f"What to list: {', '.join(KINDS)}.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """List what there is to choose from."""
    if kind not in KINDS:
        raise NestlingError(f"there is no list of {kind!r}{nearest(kind, KINDS)}")
    with working(f"reading the {kind}"):
        rows = KINDS[kind]()
    if as_json:
        print_json(rows)
        return
    columns: dict[str, Literal["left", "right"]] = {
        key: "right" if isinstance(value, int | list) else "left" for key, value in rows[0].items()
    }
    print_table(columns, [[_cell(value) for value in row.values()] for row in rows])


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return "×".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) else str(value)
