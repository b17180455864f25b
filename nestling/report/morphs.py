"""Panels of methods that prune sub-models: the units kept, and the accuracy of their networks (FedMorph)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nestling.report.panels import Figure, axis, lines, panel, short
from nestling.report.read import Run
from nestling.report.runs_by_seed import Experiment

_NETWORKS = {  # the network → its name, and its shade
    "server": ("the server's large network", 1.0),
    "averaged": ("the average of clients' small ones", 0.65),
    "morphed": ("just after pruning", 0.4),
}
_OTHER_SLICES = ("fedrolex", "fed-dropout")  # whose clients train other units than those of the tested sub-models


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
    "Accuracy of clients on their own samples while training, less that of the same model on the test set (FedMorph, "
    "Figure 4). Only where all clients train the model that is tested, and have equally distributed data.",
)
def gap(groups: Sequence[Experiment]) -> Figure | None:
    """Draw training accuracy, averaged since the last evaluation, less test accuracy (FedMorph, Figures 4 and 8)."""
    series = []
    for group in groups:
        tracks = [_gaps(run) for run in group.counted if _is_comparable(run)]
        rounds = sorted(set.intersection(*map(set, tracks))) if tracks else []
        if rounds:
            means = [sum(track[number] for track in tracks) / len(tracks) for number in rounds]
            series.append(
                {"experiment": group.number, "x": {"round": rounds}, "y": {"gap": [short(mean) for mean in means]}}
            )
    measures = [axis("gap", "training less test accuracy", "percent")]
    return lines([axis("round", "round")], measures, series) if series else None


def _is_comparable(run: Run) -> bool:
    """Return whether clients all train the model that is tested, on data like those of the test."""
    sizes = run.final.submodels if run.final else {}
    return run.partition == "iid" and len(sizes) == 1 and run.method not in _OTHER_SLICES


def _gaps(run: Run) -> dict[int, float]:
    gaps: dict[int, float] = {}
    trained: list[float] = []
    for entry in run.history:
        if entry.train_accuracy is not None:
            trained.append(entry.train_accuracy)
        if not entry.measured:
            continue
        accuracies = [values.get("accuracy") for values in entry.measured.submodels.values()]
        if trained and len(accuracies) == 1 and (accuracy := accuracies[0]) is not None:
            gaps[entry.round] = sum(trained) / len(trained) - accuracy
        trained = []
    return gaps


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
