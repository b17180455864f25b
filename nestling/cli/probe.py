"""``nestling probe``: measure this device."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from nestling.amounts import amount
from nestling.budgets import parse_bytes, written
from nestling.cli.cost import MAX_BATCH
from nestling.cli.screen import AsJson, out, print_json, print_table, working
from nestling.cli.target import ModelName, ModelOptions, load, parse_options
from nestling.errors import NestlingError


def probe_command(
    model: ModelName = "cnn",
    *,
    levels: Annotated[
        str, typer.Option(metavar="LEVELS", help="The levels to measure: a (width 1) to e, or widths such as 0.3.")
    ] = "a,b,c,d,e",
    batch: Annotated[int, typer.Option(metavar="N", help="The samples of a training step.")] = 32,
    down: Annotated[
        str | None, typer.Option(metavar="BYTES", help="Bytes per second from the network, such as '5 MB', if known.")
    ] = None,
    up: Annotated[
        str | None, typer.Option(metavar="BYTES", help="Bytes per second to the network, such as '1 MB', if known.")
    ] = None,
    options: ModelOptions = None,
    as_json: AsJson = False,
) -> None:
    """Measure this device: training steps of a model's levels, its memory, and its class.

    A time is the median of 20 steps of SGD in one thread; speed is the MACs of training per second in the fastest
    level. The bandwidth of memory is measured; that of the network counts only if it is given. The class is the largest
    of 'nestling list devices' that this device equals in all of these.
    """
    if not 1 <= batch <= MAX_BATCH:
        raise NestlingError(f"a batch has at least 1 sample, not {batch}, and at most {MAX_BATCH:,}")
    network = {name: parse_bytes(text) for name, text in (("down", down), ("up", up)) if text is not None}
    rows = _rows(model, levels, batch, parse_options(options or []))
    with working("measuring memory"):
        from nestling import machine  # noqa: PLC0415
        from nestling.sizing.device_probe import device_class, memory_bandwidth  # noqa: PLC0415

        bandwidth = memory_bandwidth()
        memory = min((value for value in machine.memory().values() if value is not None), default=None)
    speed = max(row["macs_per_second"] for row in rows)
    figures = {"speed": speed} | ({} if memory is None else {"memory": memory}) | network
    kind, limiting = device_class(figures)
    result = {
        "processor": machine.cpu_name(),
        "class": kind,
        "limited_by": limiting or None,
        "memory": memory,
        "speed": speed,
        "down": network.get("down"),
        "up": network.get("up"),
        "memory_bandwidth": bandwidth,
        "model": model,
        "batch": batch,
        "levels": rows,
    }
    if as_json:
        print_json(result)
        return
    _print(result)


def _rows(name: str, levels: str, batch: int, options: dict[str, Any]) -> list[dict[str, Any]]:
    from nestling.fleet import TRAINING, parse_levels  # noqa: PLC0415

    parsed = parse_levels(levels)
    with working(f"tracing {name}"):
        import nestling  # noqa: PLC0415
        from nestling.sizing.search import model_meter  # noqa: PLC0415

        target = load(name, options, shapes_only=True)
        axes = nestling.trace(target.model, *target.args, **target.kwargs)
        meter = model_meter(target.model, axes, *target.args, batch=batch, **target.kwargs)
    rows = []
    for level in parsed:
        with working(f"measuring {name} at level {level.name}"):
            size = meter.measured(nestling.plan(axes, level.ratio), level.ratio, limit=float("inf"))
        seconds = size.seconds or 0.0
        rows.append(
            {
                "level": level.name,
                "parameters": size.parameters,
                "bytes": size.bytes,
                "macs": size.macs,
                "memory": size.memory,
                "seconds": seconds,
                "macs_per_second": TRAINING * size.macs * batch / seconds,
            }
        )
    return rows


def _print(result: dict[str, Any]) -> None:
    columns: dict[str, Literal["left", "right"]] = {"level": "left"}
    columns |= dict.fromkeys(("parameters", "size", "memory", "step", "MACs/s"), "right")
    print_table(
        columns,
        [
            [
                row["level"],
                f"{row['parameters']:,}",
                written("bytes", row["bytes"]),
                written("bytes", row["memory"]),
                written("seconds", row["seconds"]),
                amount(row["macs_per_second"]),
            ]
            for row in result["levels"]
        ],
        caption=f"{result['model']}; median of 20 SGD steps at batch {result['batch']} in one thread",
    )
    known = "not known" if result["memory"] is None else written("bytes", result["memory"])
    out().print(
        f"memory {known}, {written('bytes', result['memory_bandwidth'])}/s; speed {amount(result['speed'])}MACs/s",
        soft_wrap=True,
    )
    network = [f"{name} {written('bytes', result[name])}/s" for name in ("down", "up") if result[name] is not None]
    if network:
        out().print(f"network, as given: {', '.join(network)}", soft_wrap=True)
    limit = f"; {result['limited_by']} keeps it out of the next larger" if result["limited_by"] else ""
    out().print(f"class: {result['class']} (of 'nestling list devices'){limit}", soft_wrap=True)
