"""``nestling run`` and ``nestling resume``: one experiment, from its settings to its figures."""

from __future__ import annotations

import logging
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nestling.amounts import BYTES, amount
from nestling.cli.screen import err, out, print_json, print_table, working
from nestling.events import in_words, totals_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from nestling.experiment import Result

AsJson = Annotated[bool, typer.Option("--json", help="Print the summary as JSON instead of a table.")]
Board = Annotated[bool, typer.Option("--tensorboard", help="Also write DIR/tensorboard.")]


def run_command(
    source: Annotated[
        str, typer.Argument(metavar="PRESET|FILE.toml", help="What to run; see 'nestling list presets'.")
    ],
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings to change, such as rounds=5.")
    ] = None,
    *,
    folder: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="A new directory; by default runs/NAME/seed-SEED.")
    ] = None,
    data_dir: Annotated[
        str | None, typer.Option("--data-dir", metavar="DIR", help="Where data files lie; or NESTLING_DATA.")
    ] = None,
    tensorboard: Board = False,
    as_json: AsJson = False,
) -> None:
    """Run an experiment: a preset or a TOML file, with settings changed as you like.

    Writes config.toml, metrics.jsonl, summary.json, model.safetensors and checkpoints. Ctrl-C (or SIGTERM, SIGHUP)
    stops it after saving; 'nestling resume DIR' goes on. Another model.name or method starts from its own options, not
    from the preset's.
    """
    with working("reading the settings"):
        from nestling.experiment import find, run  # noqa: PLC0415
        from nestling.experiment.directory import claim, remove_if_empty  # noqa: PLC0415
        from nestling.experiment.record import title  # noqa: PLC0415

        given = list(settings or [])
        if data_dir is not None:
            given.append(f"data.dir={data_dir!r}")
        experiment = find(source).with_settings(given)
    place = folder or claim(Path("runs") / title(experiment) / f"seed-{experiment.seed}")
    try:
        result = with_progress(
            title(experiment), place, tensorboard, lambda callbacks: run(experiment, out=place, callbacks=callbacks)
        )
    finally:
        if folder is None:
            remove_if_empty(place, place.parent)  # where no run could begin
    show(result, place, as_json)


def resume_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The directory of the run.")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Settings that may change: rounds, workers, engine, address, …"),
    ] = None,
    *,
    tensorboard: Board = False,
    as_json: AsJson = False,
) -> None:
    """Go on with a run from its last checkpoint: the figures will be those of a run never interrupted.

    With rounds=N it gets N rounds in all, where earlier rounds do not depend on how many there are.
    """
    with working("reading the run"):
        from nestling.experiment import resume  # noqa: PLC0415
    given = settings or []
    result = with_progress(
        folder.name, folder, tensorboard, lambda callbacks: resume(folder, settings=given, callbacks=callbacks)
    )
    show(result, folder, as_json)


def with_progress(label: str, place: Path, tensorboard: bool, action: Callable[[Any], Result]) -> Result:
    """Call a function with callbacks that show its progress; on Ctrl-C, say how to go on; then sum up its events."""
    from nestling.cli.progress import ProgressBar, TensorBoard  # noqa: PLC0415

    with ExitStack() as stack:
        callbacks: list[Any] = [stack.enter_context(ProgressBar(label))]
        if tensorboard:
            callbacks.append(TensorBoard(place / "tensorboard"))
        try:
            result = action(callbacks)
        except KeyboardInterrupt:
            with suppress(OSError):  # the terminal may be gone
                stack.close()
                err().print(_stopped(place), soft_wrap=True)
            raise
    sum_up(place)
    return result


def _stopped(place: Path) -> str:
    """Return what is printed of a run that was stopped."""
    if any(place.glob("checkpoints/round-*")):
        return f"stopped; all whole rounds are saved: nestling resume {place}"
    again = f"; to begin again: nestling resume {place}" if (place / "config.toml").exists() else ""
    return f"stopped before the first round was finished; nothing is saved{again}"


def sum_up(place: Path) -> None:
    """Print in one line on stderr what went differently than planned in a run, if anything did."""
    totals = totals_of(place, logging.getLogger("nestling").getEffectiveLevel())
    if totals:
        err().print(f"{in_words(totals)}: see {place / 'events.jsonl'}", soft_wrap=True)


def show(result: Result, place: Path, as_json: bool) -> None:
    """Print the summary of a run."""
    summary = result.summary
    if as_json:
        print_json({**summary, "directory": str(place)})
        return
    final, best = summary["final"], summary["best"]
    accuracy = "global_accuracy" in final  # runs of version 0.1 name no metrics
    metrics = summary.get("metrics") or [{"name": "accuracy" if accuracy else "perplexity", "percent": accuracy}]
    rows = []
    for name, level in summary["levels"].items():
        rows.append(
            [
                name,
                f"{level['parameters']:,}",
                amount(level["macs"]),
                measured(final["submodels"].get(name, {}), metrics),
                measured(best["submodels"].get(name, {}), metrics),
            ]
        )
    print_table(
        {
            "level": "left",
            "parameters": "right",
            "MACs": "right",
            f"final (round {final['round']})": "right",
            f"best (round {best['round']})": "right",
        },
        rows,
    )
    local = f", local {share(final['local_accuracy'])}" if "local_accuracy" in final else ""
    spent = amount(summary["bytes_down"] + summary["bytes_up"], BYTES)
    if summary["bytes_setup"]:
        spent += f" and {amount(summary['bytes_setup'], BYTES)} of frozen weights handed out"
    out().print(
        f"global {measured(final, metrics)}{local}; {spent} sent, "
        f"{amount(summary['client_macs'])} MACs on clients, {summary['seconds']:.0f} s",
        soft_wrap=True,
    )
    out().print(f"written to {place}", soft_wrap=True)


def measured(figures: Mapping[str, Any], metrics: Sequence[Mapping[str, Any]]) -> str:
    """Return the first of a run's metrics, for people.

    >>> measured({"accuracy": 0.5}, [{"name": "accuracy", "percent": True}])
    '50.0%'
    >>> measured({"perplexity": 35.1234, "loss": 3.5}, [{"name": "perplexity", "percent": False}])
    'perplexity 35.12'
    """
    name = metrics[0]["name"]
    value = figures.get(f"global_{name}", figures.get(name))
    if value is None:
        return "–"
    return share(value) if metrics[0]["percent"] else f"{name} {value:.4g}"


def share(value: float | None) -> str:
    """Return an accuracy for people."""
    return "–" if value is None else f"{value:.1%}"
