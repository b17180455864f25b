"""``nestling check``: prove that a model can be cut, or say where it cannot."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nestling.cli.completion import complete
from nestling.cli.screen import AsJson, err, out, print_json, print_table, working
from nestling.cli.target import ModelOptions, load, parse_options
from nestling.files import write_whole

if TYPE_CHECKING:
    from rich.text import Text
    from torch import nn

    from nestling import AxisMap, Report


def check_command(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="A name from 'nestling list models', or package.module:factory.",
            autocompletion=complete("models"),
        ),
    ],
    options: ModelOptions = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE.svg", help="Draw the nested sizes, at levels a to e, and what is frozen."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Prove that a model can be cut into sub-models, and say what cannot be cut and what to do about it.

    The exit code is 0 if it can, and 1 if an axis or a sub-model fails. A factory is a function without arguments that
    returns (model, example), where the example is a tensor, a tuple of tensors, or a dictionary of keyword arguments.
    It may also return a model that has such an example as its attribute example_inputs. The module is searched for in
    the current directory first.
    """
    with working(f"tracing {target}"):
        import nestling  # noqa: PLC0415

        loaded = load(target, parse_options(options or []))
        axes = nestling.trace(loaded.model, *loaded.args, **loaded.kwargs)
    with working(f"proving the axes of {target}"):
        report = nestling.check(loaded.model, axes, *loaded.args, **loaded.kwargs)
    proof = _as_json(report, axes)
    if plot is not None:
        write_whole(plot, _drawing(target, loaded.model, axes).encode())
        err().print(f"written to {plot}", soft_wrap=True)
    if as_json:
        print_json(proof)
    else:
        _print(proof)
    raise typer.Exit(0 if report.ok else 1)


def _as_json(report: Report, axes: AxisMap) -> dict[str, Any]:
    """Return the report as the object that --json prints."""
    from nestling.axes.remedies import remedy  # noqa: PLC0415

    rows: dict[str, list[dict[str, Any]]] = {"axis": [], "frozen": [], "sub-model": []}
    for row in report.rows:
        if row.kind == "axis":
            tensors = len(axes.uses(row.name))
            entry = {"name": row.name, "size": row.size, "tensors": tensors, "ok": row.ok}
            rows["axis"].append(entry | {"note": "" if row.ok else row.note})
        elif row.kind == "frozen":
            rows["frozen"].append({"name": row.name, "size": row.size, "why": row.note, "remedy": remedy(row.note)})
        else:
            rows["sub-model"].append({"name": row.name, "parameters": row.size, "ok": row.ok, "note": row.note})
    return {
        "ok": report.ok,
        "coverage": report.coverage,
        "axes": rows["axis"],
        "frozen": rows["frozen"],
        "submodels": rows["sub-model"],
    }


def _drawing(target: str, model: nn.Module, axes: AxisMap) -> str:
    """Return a picture of the sub-models of levels a to e."""
    from nestling.cut import plan, resize  # noqa: PLC0415
    from nestling.fleet import LEVELS  # noqa: PLC0415
    from nestling.report.nested_sizes import NestedAxis, draw_nested  # noqa: PLC0415

    plans = {level: plan(axes, ratio) for level, ratio in LEVELS.items()}
    sizes = {
        level: sum(parameter.numel() for parameter in resize(model, axes, one).parameters())
        for level, one in plans.items()
    }
    rows = [
        NestedAxis(
            axis.name, axis.size, tuple(one.sizes.get(axis.name, axis.size) for one in plans.values()), axis.frozen
        )
        for axis in axes.table.values()
    ]
    # first what is frozen and might be freed, last inputs and outputs
    rows.sort(key=lambda row: (axes.table[row.name].role != "hidden", not row.frozen))
    return draw_nested(f"{target}: nested sizes", sizes, rows)


def _print(proof: dict[str, Any]) -> None:
    axes, frozen, submodels = proof["axes"], proof["frozen"], proof["submodels"]
    print_table(
        {"axis": "left", "units": "right", "tensors": "right", "proof": "text"},
        [[row["name"], f"{row['size']:,}", f"{row['tensors']:,}", _verdict(row, "holds")] for row in axes],
    )
    out().print()
    if frozen:
        print_table(
            {"frozen axis": "left", "units": "right", "why it is never cut": "text", "what to do": "text"},
            [[row["name"], f"{row['size']:,}", row["why"], row["remedy"]] for row in frozen],
        )
        out().print()
    print_table(
        {"sub-model": "left", "parameters": "right", "proof": "text"},
        [[row["name"], f"{row['parameters']:,}" if row["ok"] else "–", _verdict(row, "trains")] for row in submodels],
    )
    out().print()
    # rounded down, so that 100% means all
    coverage = f"coverage {math.floor(proof['coverage'] * 10_000) / 100:.2f}% of the parameters"
    if proof["ok"]:
        verdict = f"ok: all {len(axes)} axes hold and all {len(submodels)} sub-models train"
    else:
        verdict = "not ok: " + " and ".join(
            f"{count} of {len(rows)} {kind} failed"
            for kind, rows in (("axes", axes), ("sub-models", submodels))
            if (count := sum(not row["ok"] for row in rows))
        )
    out().print(f"{coverage}; {verdict}", style="bold green" if proof["ok"] else "bold red")


def _verdict(row: dict[str, Any], good: str) -> Text:
    from rich.text import Text  # noqa: PLC0415

    return Text(good, "green") if row["ok"] else Text(row["note"], "bold red")
