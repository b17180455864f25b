"""``nestling fit``: the largest sub-model for each of several budgets."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nestling.amounts import amount
from nestling.budgets import Budget, parse_budget, written
from nestling.cli.completion import complete, words
from nestling.cli.cost import MAX_BATCH
from nestling.cli.screen import AsJson, err, out, print_json, print_table, working
from nestling.cli.target import ModelOptions, load, parse_options
from nestling.errors import BudgetError, NestlingError, nearest
from nestling.files import write_whole

if TYPE_CHECKING:
    from nestling.sizing import Fitted

Budgets = dict[str, Budget]  # name of a kind of device → its budget


def fit_command(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="A name from 'nestling list models', package.module:factory, or a run directory.",
            autocompletion=complete("models"),
        ),
    ],
    *,
    budgets: Annotated[
        list[str] | None,
        typer.Option(
            "--budget",
            metavar="BUDGET",
            help="Limits of one kind of device, with commas between them: '2 MB' of weights, '50 MMACs' forward for "
            "one sample, '100 MB memory' and '20 ms' for a training step. May be repeated, and named: 'phone: 2 MB'.",
        ),
    ] = None,
    devices: Annotated[
        list[str] | None,
        typer.Option(
            "--device",
            metavar="NAME",
            help="A kind of 'nestling list devices': its memory is the budget.",
            autocompletion=complete("devices"),
        ),
    ] = None,
    by: Annotated[
        str,
        typer.Option(
            metavar="HOW",
            autocompletion=words("balanced", "width", "depth"),
            help="What is cut of a model: balanced (width and depth alike), width (as levels), or depth.",
        ),
    ] = "balanced",
    batch: Annotated[
        int | None,
        typer.Option(metavar="N", help="The samples of a training step [default: 32; of a run, its batch size]."),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE.toml", help="Also write the table, which fleet.levels=FILE.toml reads."),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE.svg", help="Of a run: draw the size of sub-models against their accuracy."),
    ] = None,
    options: ModelOptions = None,
    as_json: AsJson = False,
) -> None:
    """Find the largest sub-model for each budget.

    Of a model, width and depth are cut alike unless --by says otherwise; of a run directory, the method's own
    sub-models are searched, and tested. No limit is ever exceeded: bytes, MACs and memory are computed, and a limit of
    time is held by the median of 20 training steps measured here.
    """
    named = _named(budgets or [], devices or [])
    if batch is not None and not 1 <= batch <= MAX_BATCH:
        raise NestlingError(f"a batch has at least 1 sample, not {batch}, and at most {MAX_BATCH:,}")
    if Path(target).is_dir():
        rows = _rows_of_run(target, named, by, batch, options)
    elif plot is not None:
        raise BudgetError(f"--plot draws the accuracy of a run's sub-models: give a run directory, not {target!r}")
    else:
        rows = _rows_of_model(target, named, by, batch or 32, parse_options(options or []))
    if file is not None:
        write_whole(file, _as_toml(target, rows))
    if plot is not None:
        from nestling.cli.fit_plot import draw_sizes  # noqa: PLC0415

        write_whole(plot, draw_sizes(target, rows).encode())
    _print([row for row in rows if row["budget"]], as_json)
    for path in filter(None, (file, plot)):
        (err() if as_json else out()).print(f"written to {path}", soft_wrap=True)


def _named(budgets: Sequence[str], devices: Sequence[str]) -> Budgets:
    """Return budgets by name; one without a name is called by its text."""
    from nestling.fleet import DEVICES  # noqa: PLC0415

    named: Budgets = {}
    for text in budgets:
        name, colon, limits = text.partition(":")
        key = name.strip() if colon else " ".join(text.split())
        if key in named:
            raise BudgetError(f"the budget {key!r} is given twice: give each budget its own name")
        named[key] = parse_budget(limits if colon else text)
    for name in devices:
        if name not in DEVICES:
            raise BudgetError(f"there is no device {name!r}{nearest(name, DEVICES)}")
        named[name] = Budget(memory=DEVICES[name].memory)
    if not named:
        raise BudgetError("fit needs a budget, such as --budget '2 MB, 50 MMACs' or --device phone-low")
    return named


def _rows_of_model(name: str, budgets: Budgets, by: str, batch: int, options: dict[str, Any]) -> list[dict[str, Any]]:
    with working(f"tracing {name}"):
        import nestling  # noqa: PLC0415
        from nestling.sizing import largest_plan, plan_path  # noqa: PLC0415
        from nestling.sizing.search import model_meter  # noqa: PLC0415

        target = load(name, options, shapes_only=True)
        axes = nestling.trace(target.model, *target.args, **target.kwargs)
        path = plan_path(axes, by)
        meter = model_meter(target.model, axes, *target.args, batch=batch, **target.kwargs)
    whole = sum(parameter.numel() for parameter in target.model.parameters())
    rows = []
    for key, budget in budgets.items():
        with working(f"searching the sub-models of {name} for {key}"):
            size = largest_plan(path, meter, budget)
        rows.append(_row(key, budget, by, size, whole=whole, blocks=len(axes.blocks)))
    return rows


def _rows_of_run(
    folder: str, budgets: Budgets, by: str, batch: int | None, options: list[str] | None
) -> list[dict[str, Any]]:
    """Return a row for every budget, and, without a budget, for every level of the run."""
    if by != "balanced" or batch is not None or options:
        raise BudgetError(
            f"{folder!r} is a run, whose method and settings say what is cut: leave out --by, --batch, --set"
        )
    with working(f"reading {folder}"):
        import nestling  # noqa: PLC0415

        loaded = nestling.load(folder)
    method, blocks = loaded.experiment.method, len(loaded.axes.blocks)
    whole = loaded.selected("full").size.parameters
    rows = []
    for key, budget in budgets.items():
        with working(f"searching the sub-models of {folder} for {key}"):
            choice = loaded.choose(budget)
            metric, value = loaded.tested(choice.level.ratio)
        row = _row(key, budget, method, choice.size, whole=whole, blocks=blocks)
        rows.append(row | {"level": choice.level.name, "trained": choice.trained, "metric": metric, "value": value})
    for name, ratio in loaded.levels.items():
        with working(f"testing level {name} of {folder}"):
            size = loaded.selected(name).size
            metric, value = loaded.tested(ratio)
        row = _row("", Budget(), method, size, whole=whole, blocks=blocks)
        rows.append(row | {"level": name, "trained": True, "metric": metric, "value": value})
    return rows


def _row(name: str, budget: Budget, by: str, size: Fitted, *, whole: int, blocks: int) -> dict[str, Any]:
    return {
        "name": name,
        "budget": str(budget),
        "by": by,
        "width": size.ratio,
        "blocks": blocks if size.plan.blocks is None else len(size.plan.blocks),
        "all_blocks": blocks,
        "parameters": size.parameters,
        "share": size.parameters / whole,
        "bytes": size.bytes,
        "macs": size.macs,
        "memory": size.memory,
        "batch": size.batch,
        "seconds": size.seconds,
        "plan": size.plan.to_json(),
    }


def _as_toml(target: str, rows: list[dict[str, Any]]) -> bytes:
    """Return the table as a file that `fleet.levels` reads: the budgets, with equal shares of the clients."""
    import tomli_w  # noqa: PLC0415

    entries = []
    for row in rows:
        if row["budget"]:
            fitted = {key: value for key, value in row.items() if key not in ("name", "budget") and value is not None}
            carried: dict[str, Any] = {"budget": row["budget"]}
            if row["seconds"] is not None and ("level" in row or row["by"] == "width"):
                carried = {"level": row.get("level", row["width"])}  # other machines would measure other times
            entries.append({"name": row["name"], **carried, "fit": fitted})
    remark = (
        f"# The largest sub-models of {target} for some budgets, found by 'nestling fit {shlex.quote(target)}'.\n"
        '# As fleet.levels of an experiment: give a device a share = 0.6 of the clients, or clients = "0-9".\n\n'
    )
    return (remark + tomli_w.dumps({"device": entries})).encode()


def _print(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        import json  # noqa: PLC0415

        print_json([row | {"plan": json.loads(row["plan"])} for row in rows])
        return
    of_run = "metric" in rows[0]
    columns: dict[str, Any] = {"device": "left", "level" if of_run else "width": "right"}
    columns |= {"blocks": "right"} if rows[0]["all_blocks"] else {}
    columns |= dict.fromkeys(("parameters", "share", "size", "MACs", "memory"), "right")
    columns |= {"step": "right"} if any(row["seconds"] is not None for row in rows) else {}
    columns |= {rows[0]["metric"]: "right"} if of_run else {}
    print_table(columns, [_cells(row, columns) for row in rows], caption=_caption(rows, of_run))


def _cells(row: dict[str, Any], columns: dict[str, Any]) -> list[str]:
    from nestling.report import measures  # noqa: PLC0415

    value = row.get("value")
    cells = {
        "device": row["name"],
        "width": f"{row['width']:.4g}",
        "level": f"{row.get('level')}{'' if row.get('trained') else ' *'}",
        "blocks": f"{row['blocks']}/{row['all_blocks']}",
        "parameters": f"{row['parameters']:,}",
        "share": f"{row['share']:.2%}",
        "size": written("bytes", row["bytes"]),
        "MACs": amount(row["macs"]),
        "memory": written("bytes", row["memory"]),
        "step": "–" if row["seconds"] is None else written("seconds", row["seconds"]),
        row.get("metric", ""): "–" if value is None else measures.written(row["metric"], value),
    }
    return [cells[column] for column in columns]


def _caption(rows: list[dict[str, Any]], of_run: bool) -> str:
    batch = rows[0]["batch"]
    caption = f"size of the tensors; MACs of one sample forward; memory{' and time' if rows[0]['seconds'] else ''} of "
    caption += f"one SGD step at batch {batch}"
    return caption + (
        "; * a slice between two levels of the run" if of_run and not all(r["trained"] for r in rows) else ""
    )
