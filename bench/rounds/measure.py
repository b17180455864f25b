"""The part `rounds`: every system on every workload, in turn; ratios against what they should be.

A ratio is the median of those of turns that followed each other: a machine that gets slower meanwhile slows down both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from bench.figure import Figure, Table
from bench.rounds.contest import Contestant, Turns, contest
from bench.rounds.others import OTHERS, PFL, Other
from bench.rounds.ours import PHASES
from bench.rounds.player import command
from bench.rounds.workloads import WORKLOADS, find

Found = Mapping[str, Turns | str]
COLUMNS = {
    "floor": "bare steps",
    "research": "research loop",
    "one": "Nestling, 1 worker",
    "two": "2 workers",
    "groups": "… and grouped clients",
    "Flower": "Flower",
    "Flower, lean": "Flower, lean",
    "pfl": "pfl",
}
BEST = "groups"
_LOCAL = ("floor", "research", "one", "two", BEST)
_BEST = "two workers, grouped clients"
_TRIED = ("cifar10", "mlp")  # with norms and without
_OFTEN = 10  # rounds from evaluation to evaluation in the papers' presets


def rounds(quick: bool = False, workloads: Sequence[str] = ()) -> Iterator[Figure | Table]:
    """Measure all systems on some workloads; yield tables of seconds and of shares, and ratios with their bounds."""
    workloads = workloads or (_TRIED if quick else tuple(WORKLOADS))
    ours = {name: _contest(name, _LOCAL, quick) for name in workloads}
    profiles = {name: _contest(name, ["profile"], quick, most=3) for name in workloads}
    beside = {
        other.name: {name: _beside(other, name, quick) for name in _of(other, workloads, quick)}
        for other in OTHERS
        if not other.missing()
    }
    yield _seconds(ours, beside)
    yield _with_evaluation(ours)
    yield _profile(profiles)
    for name, measured in ours.items():
        yield from _ratios(name, {**measured, **profiles[name]})
    for other in OTHERS:
        yield from _others(other, beside.get(other.name, {}))


def _contest(workload: str, systems: Sequence[str], quick: bool, most: int = 99, other: Other | None = None) -> Found:
    contestants = {system: Contestant(command(system, workload, quick)) for system in systems}
    if other is not None:
        contestants[other.name] = other.start(workload, quick)
    return contest(contestants, min(most, find(workload, quick).repeats))


def _of(other: Other, workloads: Sequence[str], quick: bool) -> list[str]:
    """The workloads that another system plays: where things are only tried out, one."""
    names = [name for name in workloads if name in other.workloads]
    return names[-1:] if quick else names


def _beside(other: Other, workload: str, quick: bool) -> Found:
    """Another system beside Nestling: apart from the others, as it may keep the machine busy between its turns."""
    systems = ("one", BEST) if other is PFL else (BEST,)
    return _contest(workload, systems, quick, other=other)


def _spent(measured: Found, system: str, *what: str) -> list[float]:
    """The seconds that a system spent in each of its turns; none where it had no turn."""
    turns = measured.get(system, "")
    return [] if isinstance(turns, str) else [sum(turn[one] for one in what) for turn in turns]


def _typical(measured: Found, system: str, *what: str) -> float | None:
    """The seconds that a system spent in a turn."""
    turns = _spent(measured, system, *what)
    return median(turns) if turns else None


def _ratio(long: Sequence[float], short: Sequence[float]) -> float:
    """How many times as long the first are as the second.

    >>> _ratio([2.0, 6.0, 5.0], [1.0, 3.0, 1.0])
    2.0
    """
    return median(one / other for one, other in zip(long, short, strict=True))


def _seconds(ours: Mapping[str, Found], beside: Mapping[str, Mapping[str, Found]]) -> Table:
    everyone = [system for system in COLUMNS if system in _LOCAL or system in beside]
    rows = []
    for name, measured in ours.items():
        all_found = dict(measured)
        for other, their in beside.items():
            all_found |= {other: their[name][other]} if name in their else {}
        rows.append((WORKLOADS[name].about, tuple(_typical(all_found, system, "round") for system in everyone)))
    return Table("seconds of a round", tuple(COLUMNS[system] for system in everyone), tuple(rows))


def _with_evaluation(ours: Mapping[str, Found]) -> Table:
    systems = [system for system in COLUMNS if system in _LOCAL and system != "floor"]
    rows = (
        (WORKLOADS[name].about, tuple(_typical(measured, system, "round", "evaluation") for system in systems))
        for name, measured in ours.items()
    )
    note = "statistics of norms over all clients' samples in batches of 10, and a test of the whole model"
    return Table("… with evaluation", tuple(COLUMNS[system] for system in systems), tuple(rows), note)


def _profile(ours: Mapping[str, Found]) -> Table:
    rows = []
    for name, measured in ours.items():
        whole = _typical(measured, "profile", *PHASES)
        shares = (_typical(measured, "profile", phase) for phase in PHASES)
        rows.append((WORKLOADS[name].about, tuple(None if s is None or not whole else 100 * s / whole for s in shares)))
    note = "one worker, no groups; statistics, evaluation and writing as if after every round"
    return Table("where the time goes, %", PHASES, tuple(rows), note)


def _ratios(name: str, measured: Found) -> Iterator[Figure]:
    """What a workload should reach."""
    about = WORKLOADS[name].about
    for system, turns in measured.items():
        if isinstance(turns, str):
            yield Figure(f"{about}: {COLUMNS.get(system, system)}", None, "", "measured", False, turns)
    floor, one, best = (_spent(measured, system, "round") for system in ("floor", "one", BEST))
    if floor and one:
        most = {"cifar10": 1.03, "mnist": 1.03, "mlp": 1.25}.get(name)
        bound, ratio = f"≤ {most}" if most else "", _ratio(one, floor)
        yield Figure(f"{about}: one worker", ratio, "× bare steps", bound, most is None or ratio <= most)
    if floor and best:
        least, ratio = 1.9 if WORKLOADS[name].mixed else 4.0, _ratio(floor, best)
        yield Figure(f"{about}: {_BEST}", ratio, "× as fast as bare steps", f"≥ {least:g}", ratio >= least)
    loop, whole = (_spent(measured, system, "round", "evaluation") for system in ("research", BEST))
    if not (loop and whole):
        return
    rarely = [round + (both - round) / _OFTEN for round, both in zip(best, whole, strict=True)]
    same = 4.0 if name == "cifar10" else 0.0  # only the same work has a bound
    for what, spent, least, note in (
        ("each round", whole, same, "the same work"),
        (f"every {_OFTEN}th", rarely, 0.0, "less work: the loop evaluates each round"),
    ):
        ratio = _ratio(loop, spent)
        yield Figure(
            f"{about}: with evaluation {what}, {_BEST}",
            ratio,
            "× as fast as the research loop",
            f"≥ {least:g}" if least else "",
            ratio >= least,
            note,
        )


def _others(other: Other, measured: Mapping[str, Found]) -> Iterator[Figure]:
    missing = other.missing()
    if missing:
        yield Figure(other.name, None, "", "measured", False, missing)
    for name, turns in measured.items():
        about, theirs = WORKLOADS[name].about, turns[other.name]
        if isinstance(theirs, str):
            yield Figure(f"{about}: {other.name}", None, "", "measured", False, theirs)
            continue
        for system in (BEST, "one"):
            ours = _spent(turns, system, "round")
            if not ours:
                continue
            ratio = _ratio([turn["round"] for turn in theirs], ours)
            least = 0.0 if WORKLOADS[name].mixed else other.least
            yield Figure(
                f"{about}: {_BEST if system == BEST else 'one worker'}",
                ratio,
                f"× as fast as {other.name}",
                f"≥ {least:g}" if least else "",
                ratio >= least,
            )
