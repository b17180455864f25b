"""``nestling demo``: what all this is for, on embedded data: six experiments, one table, and what it says."""

from __future__ import annotations

import importlib.util
import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nestling.cli.compare import new_experiments
from nestling.cli.completion import complete
from nestling.cli.screen import AsJson, next_step, out, print_table, working
from nestling.cli.side_by_side import Processes, Seeds, WriteReport, run_and_compare
from nestling.errors import NestlingError

if TYPE_CHECKING:
    from nestling.settings import Experiment, FleetSettings

LARGE, SMALL = "fedavg-large-digits", "fedavg-small-digits"
OFTEN = "evaluate.every=2"  # for learning curves with more than three points
PRESETS = (SMALL, LARGE, "heterofl-digits", "fedrolex-digits", "fjord-digits", "fed-dropout-digits")


def demo_command(
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE",
            help="Settings to change in all experiments, such as rounds=24; 'nestling help settings' explains all.",
            autocompletion=complete("settings"),
        ),
    ] = None,
    *,
    folder: Annotated[Path, typer.Option("--out", metavar="DIR", help="The folder for the runs and the page.")] = Path(
        "runs/demo"
    ),
    seeds: Seeds = 1,
    processes: Processes = 0,
    page: WriteReport = True,
    as_json: AsJson = False,
) -> None:
    """Compare six ways to train on devices of five sizes, on embedded data.

    Everybody trains the largest model, everybody trains the smallest one, or each device trains the slice that it can
    carry, chosen by one of four methods. It takes about half a minute and downloads nothing. What it needs is installed
    by pip install 'nestling[demo]'.
    """
    if importlib.util.find_spec("sklearn") is None:
        raise NestlingError("the demo needs scikit-learn: pip install 'nestling[demo]'")
    with working("reading the settings"):
        new = new_experiments(PRESETS, [OFTEN, *(settings or [])], seeds, folder)
    if not as_json:
        _introduce(list(new.values()))
    run_and_compare(
        new,
        [],
        folder,
        processes=processes,
        page=page,
        as_json=as_json,
        conclude=partial(conclusion, next(iter(new.values())).fleet),
    )
    if not as_json:
        place = "" if folder == Path("runs/demo") else f" --out {shlex.quote(str(folder))}"
        next_step(
            *([f"nestling demo{place} --seeds 3   # how much is chance?"] * (seeds < 3)),
            f"nestling export {shlex.quote(str(folder / 'fjord-digits' / 'seed-0'))} --level c --out small.pt2",
            "nestling list presets",
        )


def _introduce(experiments: Sequence[Experiment]) -> None:
    """Print what is compared."""
    from nestling.methods.registry import about  # noqa: PLC0415

    by_name = {experiment.name: experiment for experiment in experiments}
    fleet, rounds = by_name[PRESETS[-1]].fleet, by_name[LARGE].rounds
    sizes = "the whole width of a model, a half, a quarter, an eighth or a sixteenth"
    carried = sizes if fleet.levels == "a-b-c-d-e" else f"levels {fleet.levels}"
    out().print(
        f"{fleet.clients} devices of different sizes learn to read digits: they carry {carried}. "
        f"{fleet.per_round} of them train in each of {rounds} rounds.\n"
    )
    texts = {
        SMALL: "Everybody trains the model of the smallest device.",
        LARGE: "Everybody trains the largest model, although only the largest devices could carry it.",
    }
    texts |= {name: about(experiment.method) for name, experiment in by_name.items() if name not in texts}
    print_table({"experiment": "left", "who trains what": "text"}, list(texts.items()))
    out().print()


def conclusion(fleet: FleetSettings, rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return what the table says: how near a method comes to the largest model, at what cost, and at which sizes."""
    from nestling.fleet import is_levels_file, parse_mix  # noqa: PLC0415

    needed = ("global_accuracy", "mean_submodel")
    by_name = {row["experiment"]: row for row in rows if all(row["final"].get(name) for name in needed)}
    if not by_name.keys() >= set(PRESETS):  # with settings that change what is tested
        return []
    mixed = [by_name[name] for name in PRESETS if name not in (LARGE, SMALL)]
    best, whole = max(mixed, key=lambda row: row["final"]["mean_submodel"]["mean"]), by_name[LARGE]
    reached, large, small = (
        round(100 * row["final"]["global_accuracy"]["mean"], 1) for row in (best, whole, by_name[SMALL])
    )
    distance = f"{large - reached:.1f} points below" if large > reached else f"{reached - large:.1f} points above"
    sent, computed = (100 * best[key]["mean"] / whole[key]["mean"] for key in ("bytes", "client_macs"))
    weak = ""
    if not is_levels_file(fleet.levels) and not fleet.devices:
        share = 100 * sum(share for level, share in parse_mix(fleet.levels) if level.ratio < 1)
        weak = f", although {share:.0f} % of its devices could never carry that model"
    (first, *others) = _sizes(best["directories"])
    sizes = [f"{_percent(first[1])} with {first[0]:,} parameters", *(f"{_percent(b)} with {a:,}" for a, b in others)]
    gap = f"{distance} everybody" if large != reached else "as much as everybody"
    return [
        f"{best['experiment']} reaches {reached} %, {gap} training the largest model ({large} %), for {sent:.0f} % of "
        f"its bytes and {computed:.0f} % of its computation{weak}.",
        f"The same run gives a model to every device: {', '.join(sizes)}. "
        f"Everybody training the smallest model reaches {small} %, and nobody has a larger one.",
    ]


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _sizes(directories: Sequence[str]) -> list[tuple[int, float]]:
    """Return the parameters of every level and the mean accuracy of its sub-model, the smallest first."""
    from nestling.report import read  # noqa: PLC0415

    runs = [read(directory) for directory in directories]
    return sorted(
        (level.parameters, sum(run.final.submodels[name]["accuracy"] for run in runs if run.final) / len(runs))
        for name, level in runs[0].levels.items()
    )
