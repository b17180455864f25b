"""``nestling compare``: several experiments, several seeds, one table."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nestling.cli.completion import complete
from nestling.cli.screen import AsJson, DataDir, Quiet, next_step, working
from nestling.cli.side_by_side import Processes, Seeds, WriteReport, run_and_compare
from nestling.errors import NestlingError

if TYPE_CHECKING:
    from nestling.settings import Experiment


def compare_command(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="PRESET|FILE.toml|DIR|KEY=VALUE",
            help="Experiments to run, directories of runs to read, and settings to change in all experiments.",
            autocompletion=complete("presets", "settings"),
        ),
    ],
    *,
    seeds: Seeds = 1,
    folder: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="The folder for new runs, which go to DIR/NAME/seed-N.")
    ] = Path("runs/compare"),
    processes: Processes = 0,
    data_dir: DataDir = None,
    quiet: Quiet = False,
    page: WriteReport = True,
    as_json: AsJson = False,
) -> None:
    """Run several experiments, or read finished ones, and compare them.

    The table holds means ± standard deviations over seeds, bytes sent and MACs. Finished runs are read and interrupted
    ones are resumed, so the same command can be repeated.
    """
    with working("reading the settings"):
        settings = [source for source in sources if "=" in source]
        if data_dir is not None:
            settings.append(f"data.dir={data_dir!r}")
        chosen = [source for source in sources if "=" not in source]
        existing = [Path(source) for source in chosen if Path(source).is_dir()]
        new = new_experiments([source for source in chosen if not Path(source).is_dir()], settings, seeds, folder)
    run_and_compare(new, existing, folder, processes=processes, page=page, as_json=as_json, quiet=quiet)
    if new and not as_json:
        figures = f"nestling report {shlex.quote(str(folder))} --figures pdf --latex   # for a paper"
        next_step("the same command with --seeds 3   # how much is chance?" if seeds == 1 else figures)


def new_experiments(
    sources: Sequence[str], settings: Sequence[str], seeds: int, folder: Path
) -> dict[Path, Experiment]:
    """Return directory → experiment of presets or files, each with so many seeds."""
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
