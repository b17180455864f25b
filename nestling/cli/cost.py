"""``nestling cost``: the cost of each level of a model, and the means of a mix."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from nestling.amounts import BYTES, amount
from nestling.cli.completion import complete
from nestling.cli.screen import AsJson, print_json, print_table
from nestling.cli.target import ModelName, ModelOptions, parse_options
from nestling.errors import NestlingError

_SHARES_OF_PARAMETERS = ("nefl", "depthfl")  # methods whose levels are not widths
_OF_LEVELS = ("parameters", "share", "size", "MACs", "activations", "memory")
_OF_MIX = ("clients", "ratio", "parameters", "size", "MACs", "2 × MACs", "space", "memory")
MAX_BATCH = 10**7  # samples: the product with a model's activations must fit into 64 bits


def cost_command(
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="OPTIONS.KEY=VALUE", help="Options of the method, such as options.variant=D."),
    ] = None,
    *,
    model: ModelName,
    levels: Annotated[
        str,
        typer.Option(
            metavar="LEVELS",
            help="Levels from a (width 1) to e (width 1/16), or widths such as 0.3. With hyphens or shares they are a "
            "mix, whose means come last: a-b-c-d-e, a1-e9, a:0.06,e:0.94. Or a file, as of fleet.levels.",
        ),
    ] = "a,b,c,d,e",
    method: Annotated[
        str | None,
        typer.Option(
            metavar="METHOD",
            autocompletion=complete("methods"),
            help="The method whose sub-models these are; of nefl and depthfl, levels are parameters.",
        ),
    ] = None,
    batch: Annotated[
        int, typer.Option(metavar="N", help="The samples of a training step, for activations and memory.")
    ] = 32,
    options: ModelOptions = None,
    as_json: AsJson = False,
) -> None:
    """Show what each level of a model costs.

    The table holds parameters, bytes to send, multiply-accumulates (MACs), and the memory of training. Papers count
    a MAC as one FLOP or as two. A model from 'nestling list models' is not allocated, so large ones need no memory.
    """
    from nestling.cli.cost_rows import level_rows, method_options, with_means  # noqa: PLC0415
    from nestling.fleet import is_levels_file, parse_levels, parse_mix, read_levels_file  # noqa: PLC0415
    from nestling.fleet.levels import split  # noqa: PLC0415

    file = read_levels_file(levels) if is_levels_file(levels) else None
    is_mix = file is None and (":" in levels or ("," not in levels and len(split(levels)) > 1))
    mix = parse_mix(levels) if is_mix else ()
    if file is not None:
        carried = {row.name: row.level or row.budget for row in file.rows}
        alone = {name: limit for name, limit in carried.items() if limit} or {one.name: one for one in file.levels}
    else:
        alone = {level.name: level for level in [level for level, _ in mix] or parse_levels(levels)}
    if not 1 <= batch <= MAX_BATCH:
        raise NestlingError(f"a batch has at least 1 sample, not {batch}, and at most {MAX_BATCH:,}")
    chosen = method_options(settings or [], method)
    rows = level_rows(model, alone, batch, parse_options(options or []), method=method, settings=chosen)
    if is_mix:
        rows = with_means(levels, rows, mix)
    if as_json:
        print_json(rows)
    else:
        _print(rows, batch, is_mix=is_mix, ratio="γ" if method in _SHARES_OF_PARAMETERS else "width")


def _print(rows: list[dict[str, Any]], batch: int, *, is_mix: bool, ratio: str) -> None:
    columns: dict[str, Literal["left", "right"]] = {"level": "left"}
    columns |= dict.fromkeys((ratio, *(_OF_MIX if is_mix else _OF_LEVELS)), "right")
    cells = []
    for row in rows:
        texts = {
            "level": row["level"],
            ratio: f"{row['width']:.4g}" if "width" in row else "",
            "parameters": f"{row['parameters']:,.0f}",
            "share": f"{row['share']:.2%}",
            "size": amount(row["bytes"], BYTES),
            "MACs": amount(row["macs"]),
            "activations": amount(row["activations"], BYTES),
            "memory": amount(row["memory"], BYTES),
        }
        if is_mix:
            texts["clients"] = f"{row['clients']:.4g}"
            texts["ratio"] = f"{row['ratio']:.4g}"
            texts["2 × MACs"] = amount(row["flops"])
            texts["space"] = amount(row["space"], BYTES)
        cells.append([texts[name] for name in columns])
    notes = "; ratio: parameters over the largest level's; space: parameters of 32 bits" if is_mix else ""
    sources = {row["submodel"]: None for row in rows if "submodel" in row}
    notes += f"; sub-models: {', '.join(sources)}" if sources else ""
    kept = "memory" if is_mix else "activations and memory"
    print_table(
        columns,
        cells,
        caption=f"size as sent; MACs of one sample forward; {kept} of one SGD step at batch {batch}{notes}",
    )
