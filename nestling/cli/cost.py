"""``nestling cost``: the cost of each level of a model."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from nestling.amounts import BYTES, amount
from nestling.budgets import Budget
from nestling.cli.screen import AsJson, print_json, print_table, working
from nestling.cli.target import ModelOptions, load, parse_options
from nestling.errors import NestlingError

MAX_BATCH = 10**7  # samples: the product with a model's activations must fit into 64 bits


def cost_command(
    model: Annotated[
        str,
        typer.Option(
            "--model", "-m", metavar="MODEL", help="A name from 'nestling list models', or package.module:factory."
        ),
    ],
    levels: Annotated[
        str,
        typer.Option(
            metavar="LEVELS",
            help="Levels from a (width 1) to e (width 1/16), widths such as 0.3, or a file of levels or budgets, as "
            "fleet.levels takes it.",
        ),
    ] = "a,b,c,d,e",
    batch: Annotated[
        int, typer.Option(metavar="N", help="The samples of a training step, for activations and memory.")
    ] = 32,
    options: ModelOptions = None,
    as_json: AsJson = False,
) -> None:
    """Show what each level of a model costs.

    The table holds parameters, bytes to send, multiply-accumulates (MACs), and the memory of training. A model from
    'nestling list models' is not allocated, so large ones need no memory.
    """
    from nestling.fleet import is_levels_file, parse_levels, read_levels_file  # noqa: PLC0415

    widths: dict[str, float | Budget]
    if is_levels_file(levels):
        file = read_levels_file(levels)
        widths = {row.name: row.level.ratio if row.level else row.budget or 1.0 for row in file.rows}
        if file.devices:
            widths = {level.name: level.ratio for level in file.levels}
    else:
        widths = {level.name: level.ratio for level in parse_levels(levels)}
    if not 1 <= batch <= MAX_BATCH:
        raise NestlingError(f"a batch has at least 1 sample, not {batch}, and at most {MAX_BATCH:,}")
    rows = _rows(model, widths, batch, parse_options(options or []))
    if as_json:
        print_json(rows)
        return
    print_table(
        {
            "level": "left",
            "width": "right",
            "parameters": "right",
            "share": "right",
            "size": "right",
            "MACs": "right",
            "activations": "right",
            "memory": "right",
        },
        [
            [
                row["level"],
                f"{row['width']:.4g}",
                f"{row['parameters']:,}",
                f"{row['share']:.2%}",
                amount(row["bytes"], BYTES),
                amount(row["macs"]),
                amount(row["activations"], BYTES),
                amount(row["memory"], BYTES),
            ]
            for row in rows
        ],
        caption=f"size as sent; MACs of one sample forward; activations and memory of one SGD step at batch {batch}",
    )


def _rows(name: str, widths: dict[str, float | Budget], batch: int, options: dict[str, Any]) -> list[dict[str, Any]]:
    with working(f"tracing {name}"):
        import nestling  # noqa: PLC0415
        from nestling.sizing import fit  # noqa: PLC0415

        target = load(name, options, shapes_only=True)
        model, args, kwargs = target.model, target.args, target.kwargs
        axes = nestling.trace(model, *args, **kwargs)
    whole = sum(parameter.numel() for parameter in model.parameters())
    rows = []
    for level, limit in widths.items():
        with working(f"measuring {name} at level {level}"):
            width = limit
            if isinstance(width, Budget):
                width = fit(model, axes, width, *args, batch=batch, by="width", **kwargs).ratio
            costs = nestling.cost(model, axes, nestling.plan(axes, width=width), *args, batch=batch, **kwargs)
        rows.append(
            {
                "level": level,
                "width": width,
                "parameters": costs.parameters,
                "share": costs.parameters / whole,
                "bytes": costs.bytes,
                "macs": costs.macs // batch,
                "activations": costs.activations,
                "memory": costs.memory,
                "batch": batch,
            }
        )
    return rows
