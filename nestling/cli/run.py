"""``nestling run`` and ``nestling resume``: run one experiment and print its results."""

from __future__ import annotations

import logging
import shlex
import sys
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nestling.amounts import BYTES, amount
from nestling.cli.completion import complete
from nestling.cli.screen import AsJson, DataDir, Quiet, Source, err, next_step, out, print_json, print_table, working
from nestling.events import in_words, totals_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from nestling.experiment import Result

Track = Annotated[
    list[str] | None,
    typer.Option("--track", metavar="NAME", help="Also log to tensorboard, wandb, trackio or mlflow; may be repeated."),
]
UseTensorBoard = Annotated[bool, typer.Option("--tensorboard", help="The same as --track tensorboard.")]


def run_command(
    source: Source,
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE",
            help="Settings to change, such as rounds=5; 'nestling help settings' explains all.",
            autocompletion=complete("settings"),
        ),
    ] = None,
    *,
    folder: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="The new directory of the run; by default runs/NAME/seed-SEED."),
    ] = None,
    data_dir: DataDir = None,
    track: Track = None,
    tensorboard: UseTensorBoard = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Run an experiment.

    The directory of the run gets config.toml, metrics.jsonl, summary.json, model.safetensors and checkpoints. Ctrl-C,
    SIGTERM and SIGHUP save all finished rounds and stop the run; 'nestling resume DIR' continues it. If you change
    model.name or method, the new one starts from its own default options, not from those of the preset.
    """
    with working("reading the settings"):
        from nestling.experiment import find, run  # noqa: PLC0415
        from nestling.experiment.directory import claim, remove_if_empty  # noqa: PLC0415
        from nestling.experiment.record import title  # noqa: PLC0415

        changes = list(settings or [])
        if data_dir is not None:
            changes.append(f"data.dir={data_dir!r}")
        experiment = find(source).with_settings(changes)
    path = folder or claim(Path("runs") / title(experiment) / f"seed-{experiment.seed}")
    try:
        action = partial(run, experiment, out=path, track=_trackers(track, tensorboard))
        result = _with_progress(title(experiment), path, action, quiet=quiet)
    finally:
        if folder is None:
            remove_if_empty(path, path.parent)  # if the run could not start
    _print_summary(result, path, as_json)


def resume_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The directory of the run.")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE",
            help="Settings to change, such as rounds, workers or engine.",
            autocompletion=complete("settings"),
        ),
    ] = None,
    *,
    track: Track = None,
    tensorboard: UseTensorBoard = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Continue a run from its last checkpoint.

    The results are those of a run that was never interrupted. With rounds=N the run gets N rounds in total; this is
    refused if earlier rounds depend on the number of rounds, as they do with local.schedule=cosine.
    """
    with working("reading the run"):
        from nestling.experiment import resume  # noqa: PLC0415
    action = partial(resume, folder, settings=settings or [], track=_trackers(track, tensorboard))
    result = _with_progress(folder.name, folder, action, quiet=quiet)
    _print_summary(result, folder, as_json)


def _trackers(track: Sequence[str] | None, tensorboard: bool) -> list[str]:
    return list(dict.fromkeys([*(track or []), *(["tensorboard"] if tensorboard else [])]))


def _with_progress(label: str, path: Path, action: Callable[..., Result], *, quiet: bool) -> Result:
    """Call `run` or `resume` and show the progress; on Ctrl-C print how to continue, at the end its events."""
    from nestling.cli.progress import ProgressBar  # noqa: PLC0415

    with ExitStack() as stack:
        bar = sys.stderr.isatty() and not quiet
        callbacks = [stack.enter_context(ProgressBar(label))] if bar else []
        try:
            result = action(callbacks=callbacks, quiet=quiet or bar)
        except KeyboardInterrupt:
            with suppress(OSError):  # the terminal may be closed
                stack.close()
                err().print(_stop_message(path), soft_wrap=True)
            raise
    totals = totals_of(path, logging.getLogger("nestling").getEffectiveLevel())
    if totals:
        err().print(f"{in_words(totals)}: see {path / 'events.jsonl'}", soft_wrap=True)
    return result


def _stop_message(path: Path) -> str:
    """Return the message about a run that was stopped: what is saved, and how to continue."""
    if any(path.glob("checkpoints/round-*")):
        return f"stopped; all whole rounds are saved: nestling resume {path}"
    again = f"; to begin again: nestling resume {path}" if (path / "config.toml").exists() else ""
    return f"stopped before the first round was finished; nothing is saved{again}"


def _print_summary(result: Result, path: Path, as_json: bool) -> None:
    from nestling.experiment.run_progress import format_epsilon  # noqa: PLC0415

    summary = result.summary
    if as_json:
        print_json({**summary, "directory": str(path)})
        return
    final, best = summary["final"], summary["best"]
    accuracy = "global_accuracy" in final  # runs of version 0.1 name no metrics
    metrics = summary.get("metrics") or [{"name": "accuracy" if accuracy else "perplexity", "percent": accuracy}]
    name = metrics[0]["name"].replace("_", " ")
    rows = [
        [
            level_name,
            f"{level['parameters']:,}",
            amount(level["macs"]),
            _figure(final["submodels"].get(level_name, {}), metrics),
            _figure(best["submodels"].get(level_name, {}), metrics),
        ]
        for level_name, level in summary["levels"].items()
    ]
    print_table(
        {
            "level": "left",
            "parameters": "right",
            "MACs": "right",
            f"final {name} (round {final['round']})": "right",
            f"best {name} (round {best['round']})": "right",
        },
        rows,
    )
    local = f", local {_percent(final['local_accuracy'])}" if "local_accuracy" in final else ""
    sent = f"{amount(summary['bytes_down'] + summary['bytes_up'], BYTES)} sent"
    if summary["bytes_setup"]:  # frozen weights, unlabelled samples
        sent += f" and {amount(summary['bytes_setup'], BYTES)} handed out once"
    out().print(
        f"whole model: {format_metric(final, metrics)}{local}; {sent}, "
        f"{amount(summary['client_macs'])} MACs on clients, {summary['seconds']:.0f} s",
        soft_wrap=True,
    )
    if "privacy" in summary:
        spent = summary["privacy"]
        out().print(
            f"privacy: {format_epsilon(spent)} at δ {spent['delta']:.2g} ({spent['adjacency']}), of the models alone",
            soft_wrap=True,
        )
    out().print(f"written to {path}", soft_wrap=True)
    quoted, levels = shlex.quote(str(path)), list(summary["levels"])
    smallest = f" --level {levels[-1]}" if len(levels) > 1 else ""
    next_step(
        f"nestling report {quoted}   # a page with all figures",
        f"nestling export {quoted}{smallest} --out model.pt2   # a file for devices",
    )


def format_metric(figures: Mapping[str, Any], metrics: Sequence[Mapping[str, Any]]) -> str:
    """Return the first of a run's metrics with its name.

    >>> format_metric({"accuracy": 0.5}, [{"name": "accuracy", "percent": True}])
    'accuracy 50.0%'
    >>> format_metric({"perplexity": 35.1234, "loss": 3.5}, [{"name": "perplexity", "percent": False}])
    'perplexity 35.12'
    """
    return f"{metrics[0]['name'].replace('_', ' ')} {_figure(figures, metrics)}"


def _figure(figures: Mapping[str, Any], metrics: Sequence[Mapping[str, Any]]) -> str:
    """Return the first of a run's metrics without its name."""
    name = metrics[0]["name"]
    value = figures.get(f"global_{name}", figures.get(name))
    return _percent(value) if value is None or metrics[0]["percent"] else f"{value:.4g}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"
