"""The rounds of the working tree against those of an earlier revision, turn by turn."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from bench.figure import Figure
from bench.rounds.contest import Contestant, Turns, contest
from bench.rounds.player import command
from bench.rounds.workloads import WORKLOADS, find
from nestling.errors import ConfigError, RunError

ROOT = Path(__file__).parents[2]
SYSTEMS = {"one": "one worker", "groups": "two workers, grouped clients"}
_FORMER_NAMES = {"groups": "cohorts"}  # of systems, in revisions before 0.2
_MEDIAN, _WORST = 1.03, 1.08  # of the time before: what all workloads together, and each, may take
_REPEATS = 7


def against(revision: str, quick: bool = False, workloads: Sequence[str] = ()) -> Iterator[Figure]:
    """Measure both on the same workloads; yield how long rounds take now, as a multiple of before."""
    place = _check_out(revision)
    ratios = []
    for workload in workloads or (("mlp",) if quick else tuple(WORKLOADS)):
        for system, words in SYSTEMS.items():
            turns = _contest(place, system, workload, quick)
            ratio = median(now["round"] / then["round"] for now, then in zip(*turns, strict=True))
            ratios.append(ratio)
            what = f"{WORKLOADS[workload].about}: {words}"
            yield Figure(what, ratio, f"× the time at {revision}", f"≤ {_WORST}", ratio <= _WORST)
    middle = median(ratios)
    yield Figure("median of all", middle, f"× the time at {revision}", f"≤ {_MEDIAN}", middle <= _MEDIAN)


def _contest(place: Path, system: str, workload: str, quick: bool) -> tuple[Turns, Turns]:
    package = "bench.rounds" if (place / "bench" / "rounds").is_dir() else "nestling.bench.rounds"
    player = place.joinpath(*package.split("."), "player.py").read_text(encoding="utf-8")
    earlier = system if f'"{system}"' in player else _FORMER_NAMES[system]
    then = [sys.executable, "-m", package, *command(earlier, workload, quick)[3:]]
    programs = {
        "now": Contestant(command(system, workload, quick)),
        "then": Contestant(then, {"PYTHONPATH": str(place)}, folder=place),
    }
    repeats = 1 if quick else max(_REPEATS, find(workload, quick).repeats)
    turns = contest(programs, repeats)
    for name, seconds in turns.items():
        if isinstance(seconds, str):
            raise RunError(f"{workload} could not be measured with the code of {name}: {seconds}")
    return turns["now"], turns["then"]  # type: ignore[return-value]


def _check_out(revision: str) -> Path:
    """Return a folder with the files of a revision."""
    try:
        name = subprocess.run(
            ["git", "-C", ROOT, "rev-parse", "--short=12", revision], capture_output=True, text=True, check=True
        ).stdout.strip()
        place = ROOT / ".bench" / name
        if not place.exists():
            archive = subprocess.run(["git", "-C", ROOT, "archive", name], capture_output=True, check=True).stdout
            with tarfile.open(fileobj=io.BytesIO(archive)) as files:
                files.extractall(place, filter="data")
    except subprocess.CalledProcessError as problem:
        raise ConfigError(f"there is no revision {revision!r} here: {str(problem.stderr).strip()}") from None
    return place
