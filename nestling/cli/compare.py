"""``nestling compare``: several experiments, several seeds, one table."""

from __future__ import annotations

import os
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nestling.cli.report import print_comparison
from nestling.cli.screen import AsJson, DataDir, err, working
from nestling.errors import NestlingError, RunError, RunFailed

if TYPE_CHECKING:
    from nestling.settings import Experiment


def compare_command(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="PRESET|FILE.toml|DIR|KEY=VALUE",
            help="Experiments to run, directories of runs to read, and settings to change in all experiments.",
        ),
    ],
    *,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Run each experiment with this many seeds: 0, 1, …")] = 1,
    folder: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="The folder for new runs, which go to DIR/NAME/seed-N.")
    ] = Path("runs/compare"),
    processes: Annotated[
        int, typer.Option("--processes", min=0, help="How many experiments run at the same time; 0 means one per core.")
    ] = 0,
    data_dir: DataDir = None,
    page: Annotated[bool, typer.Option("--report/--no-report", help="Also write the page DIR/report.html.")] = True,
    as_json: AsJson = False,
) -> None:
    """Run several experiments, or read finished ones, and compare them.

    The table holds means ± standard deviations over seeds, bytes sent and MACs. Finished runs are read and interrupted
    ones are resumed, so the same command can be repeated.
    """
    with working("reading the settings"):
        from nestling import report  # noqa: PLC0415
        from nestling.experiment.lock import locked  # noqa: PLC0415

        settings = [source for source in sources if "=" in source]
        if data_dir is not None:
            settings.append(f"data.dir={data_dir!r}")
        chosen = [source for source in sources if "=" not in source]
        existing = [Path(source) for source in chosen if Path(source).is_dir()]
        new = _experiments([source for source in chosen if not Path(source).is_dir()], settings, seeds, folder)
    with locked(folder) if new else nullcontext():
        failed = _run(new, processes or os.cpu_count() or 1) if new else {}
        runs = report.find([*existing, *(path for path in new if path not in failed)])
        written = report.write(runs, (folder if new else existing[0]) / "report.html") if page and runs else None
    print_comparison(report.compare(runs), written, as_json)
    if failed:
        path, problem = next(iter(failed.items()))
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        kind = RunFailed if problem.exit_code == 1 else RunError
        raise kind(f"{path} failed{more}: {problem}")


def _experiments(sources: list[str], settings: list[str], seeds: int, folder: Path) -> dict[Path, Experiment]:
    from nestling.experiment import find  # noqa: PLC0415
    from nestling.experiment.record import title  # noqa: PLC0415

    experiments: dict[Path, Experiment] = {}
    for source in sources:
        for seed in range(seeds):
            experiment = find(source).with_settings([*settings, f"seed={seed}"] if seeds > 1 else settings)
            path = folder / title(experiment) / f"seed-{experiment.seed}"
            if path in experiments:
                raise NestlingError(f"{title(experiment)!r} is given twice with seed {experiment.seed}: name each once")
            experiments[path] = experiment
    return experiments


def _run(experiments: dict[Path, Experiment], processes: int) -> dict[Path, NestlingError]:
    """Run experiments with one progress bar; return the errors of those that failed."""
    from rich.progress import TextColumn  # noqa: PLC0415

    from nestling.cli.progress import make_progress  # noqa: PLC0415
    from nestling.experiment.sweep import run_sweep  # noqa: PLC0415

    with make_progress(TextColumn("{task.completed:.0f}/{task.total:.0f} rounds")) as progress:
        task = progress.add_task(f"{len(experiments)} runs", total=sum(one.rounds for one in experiments.values()))
        try:
            return run_sweep(experiments, processes, lambda done, of: progress.update(task, completed=done, total=of))
        except KeyboardInterrupt:
            with suppress(OSError):  # the terminal may be closed
                progress.stop()
                err().print("stopped; give the same command again to go on", soft_wrap=True)
            raise
