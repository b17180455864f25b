"""Panels of methods that prune sub-models: the units kept, and the accuracy of their networks (FedMorph)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nestling.report.panels import Figure, axis, lines, panel, short
from nestling.report.read import Round, Run
from nestling.report.runs_by_seed import Experiment

_NETWORKS = {  # the network → its name, and its shade
    "server": ("the server's large network", 1.0),
    "averaged": ("the average of clients' small ones", 0.65),
    "morphed": ("just after pruning", 0.4),
}


@panel(
    "Compression of layers",
    "The share of every axis in the first network that clients got (pale) and in the last, from input to output "
    "(FedMorph, Figure 3).",
)
def kept(groups: Sequence[Experiment]) -> list[Figure] | None:
    """Draw how much of every axis is kept, first and last (FedMorph, Figures 3 and 7)."""
    figures = []
    for group in groups:
        units = next((run.panels["kept"] for run in group.counted if _is_kept(run.panels.get("kept"))), None)
        if units is None:
            continue
        rows = [
            {"name": name, "values": [short(units["first"].get(name)), short(share)]}
            for name, share in units["last"].items()
        ]
        figures.append(
            {
                "kind": "bars",
                "experiment": group.number,
                "groups": ["first network", "last network"],
                "rows": rows,
                "title": "units kept",
            }
        )
    return figures or None


@panel(
    "Networks on the way",
    "The accuracy of the server's large network, of the average of the clients' small ones, and just after pruning "
    "(FedMorph, Figure 10).",
)
def networks(groups: Sequence[Experiment]) -> list[Figure] | None:
    """Draw the accuracy of the server's, the averaged and the morphed network (FedMorph, Figure 10)."""
    figures = []
    for group in groups:
        series = [
            {
                "experiment": group.number,
                "name": name,
                "shade": shade,
                "x": {"round": list(track)},
                "y": {"accuracy": [short(value) for value in track.values()]},
            }
            for network, (name, shade) in _NETWORKS.items()
            if (track := _track(group, network))
        ]
        if series:
            measures = [axis("accuracy", "accuracy", "percent", better=1)]
            figures.append(lines([axis("round", "round")], measures, series, experiment=group.number))
    return figures or None


@panel(
    "Generalisation gap",
    "Accuracy of clients on their own samples while training, less that of the same sub-models on the test set "
    "(FedMorph, Figure 4). Only with equally distributed data, where both are about the same classes.",
)
def gap(groups: Sequence[Experiment]) -> Figure | None:
    """Draw training accuracy, averaged since the last evaluation, less test accuracy (FedMorph, Figures 4 and 8)."""
    series = []
    for group in groups:
        tracks = [_gaps(run) for run in group.counted if run.partition == "iid"]
        rounds = sorted(set.intersection(*map(set, tracks))) if tracks else []
        if rounds:
            means = [sum(track[number] for track in tracks) / len(tracks) for number in rounds]
            series.append(
                {"experiment": group.number, "x": {"round": rounds}, "y": {"gap": [short(mean) for mean in means]}}
            )
    measures = [axis("gap", "training less test accuracy", "percent")]
    return lines([axis("round", "round")], measures, series) if series else None


def _gaps(run: Run) -> dict[int, float]:
    """Return the gap after every evaluation; tests count by how many clients trained their level since the last one."""
    gaps: dict[int, float] = {}
    trained: list[float] = []
    levels: dict[str, int] = {}
    for entry in run.history:
        if entry.train_accuracy is not None:
            trained.append(entry.train_accuracy)
            for level, count in entry.levels.items():
                levels[level] = levels.get(level, 0) + count
        if not entry.measured:
            continue
        tested = _of_trained(entry, levels)
        if tested is not None and trained:
            gaps[entry.round] = sum(trained) / len(trained) - tested
        trained, levels = [], {}
    return gaps


def _of_trained(entry: Round, levels: Mapping[str, int]) -> float | None:
    """Return the test accuracy of the sub-models that clients trained, or None if one of them was not tested."""
    submodels = entry.measured.submodels if entry.measured else {}
    if len(submodels) == 1:  # all clients train the same, whatever their level
        return next(iter(submodels.values())).get("accuracy")
    accuracies = {level: submodels.get(level, {}).get("accuracy") for level, count in levels.items() if count}
    if not accuracies or any(value is None for value in accuracies.values()):
        return None
    total = sum(count for level, count in levels.items() if level in accuracies)
    return sum(value * levels[level] for level, value in accuracies.items() if value is not None) / total


def _track(group: Experiment, name: str) -> dict[int, float]:
    """Return the accuracy of a network by round, averaged over seeds."""
    accuracies: dict[int, list[float]] = {}
    for run in group.counted:
        for entry in run.history:
            evaluation = entry.evaluation or {}
            tested = evaluation.get("networks")
            if not isinstance(tested, Mapping):
                continue
            value = evaluation.get("global_accuracy") if name == "server" else tested.get(name, {}).get("accuracy")
            if isinstance(value, int | float):
                accuracies.setdefault(entry.round, []).append(float(value))
    return {round: sum(values) / len(values) for round, values in sorted(accuracies.items())}


def _is_kept(value: Any) -> bool:
    """Return whether a value describes the first and the last network: when → axis → share."""
    return isinstance(value, Mapping) and all(
        isinstance(value.get(when), Mapping) and all(isinstance(share, int | float) for share in value[when].values())
        for when in ("first", "last")
    )
