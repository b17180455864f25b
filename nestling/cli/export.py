"""``nestling export``: a run's sub-model as a file for devices."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from nestling.budgets import written
from nestling.cli.completion import words
from nestling.cli.screen import AsJson, out, print_json, print_table, working


def export_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The directory of the run.")],
    *,
    file: Annotated[Path, typer.Option("--out", metavar="FILE", help="The file to write.")],
    level: Annotated[
        str | None, typer.Option(metavar="LEVEL", help="A level of the run, or full [default: full].")
    ] = None,
    budgets: Annotated[
        list[str] | None,
        typer.Option(
            "--budget",
            metavar="BUDGET",
            help="Instead: the largest sub-model within '2 MB', '50 MMACs', '20 ms'; several limits count together.",
        ),
    ] = None,
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="FORMAT",
            autocompletion=words("safetensors", "torch", "onnx", "executorch", "executorch-training"),
            help="safetensors, torch (.pt2), onnx, executorch (.pte) or executorch-training (.train.pte), which trains "
            "on a device [default: by the ending of FILE].",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a trained sub-model to a file for devices, with its model card.

    The sub-model has the norm statistics and step sizes of its own size. The file is read again and compared with the
    sub-model; it is kept only if no output differs by more than 1e-5. The model card is FILE.md.
    """
    with working(f"reading {folder}"):
        import nestling  # noqa: PLC0415

        loaded = nestling.load(folder)
    with working(f"exporting a sub-model of {folder}"):
        exported = loaded.export(file, level, budget=budgets or None, format=form)
    size, choice = exported.choice.size, exported.choice
    row = {
        "file": str(exported.path),
        "card": str(exported.card),
        "format": exported.format,
        "level": choice.level.name,
        "trained": choice.trained,
        "parameters": size.parameters,
        "bytes": size.bytes,
        "macs": size.macs,
        "memory": size.memory,
        "batch": size.batch,
        "seconds": size.seconds,
        exported.metric: exported.value,
        "largest_difference": exported.difference,
    }
    if as_json:
        print_json(row)
        return
    from nestling.report import measures  # noqa: PLC0415

    score = "–" if exported.value is None else measures.written(exported.metric, exported.value)
    columns: dict[str, Literal["left", "right"]] = {"level": "left"}
    columns |= dict.fromkeys(("parameters", "size", "MACs", exported.metric, "largest difference"), "right")
    kind = "" if choice.trained else "; a slice between two levels of the run"
    print_table(
        columns,
        [
            [
                choice.level.name,
                f"{size.parameters:,}",
                written("bytes", size.bytes),
                written("macs", size.macs).removesuffix("MACs").strip(),
                score,
                f"{exported.difference:.2g}",
            ]
        ],
        caption=f"{exported.format}, compared with the sub-model on random samples{kind}",
    )
    out().print(f"written to {exported.path} and {exported.card}", soft_wrap=True)
