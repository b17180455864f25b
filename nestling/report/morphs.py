"""Panels of methods that prune sub-models: the units kept, and the accuracy of their networks (FedMorph)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from nestling.report.panels import Figure, colour, figure, label, line, mark, panel, tint
from nestling.report.read import Run
from nestling.report.runs_by_seed import Experiment, experiments

_NETWORKS = {"server": "solid", "averaged": "dash", "morphed": "dot"}  # the network → its line style


@panel(
    "Generalisation gap",
    "Accuracy of clients on their own samples while training, less that of the global model on the test set.",
)
def gap(runs: Sequence[Run]) -> Figure | None:
    """Draw training accuracy, averaged since the last evaluation, less test accuracy (FedMorph, Figures 4 and 8)."""
    data = []
    for experiment in experiments(runs):
        tracks = [_gaps(run) for run in experiment.counted]
        rounds = sorted(set.intersection(*map(set, tracks))) if tracks else []
        if rounds:
            data.append(
                line(experiment, rounds, [sum(track[round] for track in tracks) / len(tracks) for round in rounds])
            )
    return figure(data, "round", "training less test accuracy", yaxis={"tickformat": ".1%"}) if data else None


def _gaps(run: Run) -> dict[int, float]:
    gaps, trained = {}, []
    for entry in run.history:
        if entry.train_accuracy is not None:
            trained.append(entry.train_accuracy)
        tested = entry.measured.values.get("global_accuracy") if entry.measured else None
        if tested is not None and trained:
            gaps[entry.round] = sum(trained) / len(trained) - tested
            trained = []
    return gaps


@panel("Units kept", "The share of every axis in the first network that clients got (pale) and in the last.", wide=True)
def kept(runs: Sequence[Run]) -> Figure | None:
    """Draw how much of every axis is kept, first and last (FedMorph, Figures 3 and 7)."""
    data: list[dict[str, Any]] = []
    for experiment in experiments(runs):
        kept_units = next((run.panels["kept"] for run in experiment.counted if _is_kept(run.panels.get("kept"))), None)
        if kept_units is None:
            continue
        for when, shade in (("first", tint(experiment.number, 0.35)), ("last", colour(experiment.number))):
            shares = {axis: share for axis, share in kept_units[when].items() if isinstance(share, int | float)}
            data.append(
                {
                    "type": "bar",
                    "x": [escape(axis) for axis in shares],
                    "y": list(shares.values()),
                    "name": f"{label(experiment)}: {when}",
                    "marker": {"color": shade},
                    "meta": mark(experiment),
                    "hovertemplate": f"%{{x}}, {when}: %{{y:.1%}}<extra>{label(experiment)}</extra>",
                }
            )
    layout = {"barmode": "group", "yaxis": {"tickformat": ".0%", "rangemode": "tozero"}, "xaxis": {"type": "category"}}
    return figure(data, "axis, from input to output", "units kept", height=360, **layout) if data else None


@panel(
    "Networks on the way",
    "The large network (solid), the average of the clients' small ones (dashed), and just after pruning (dotted).",
)
def networks(runs: Sequence[Run]) -> Figure | None:
    """Draw the accuracy of the server's, the averaged and the morphed network (FedMorph, Figure 10)."""
    data = []
    for experiment in experiments(runs):
        for name, dash in _NETWORKS.items():
            track = _track(experiment, name)
            if track:
                drawn = line(experiment, list(track), list(track.values()))
                drawn["name"] = f"{label(experiment)}: {name}"
                drawn["line"] = {**drawn["line"], "dash": dash}
                data.append(drawn)
    return figure(data, "round", "accuracy", yaxis={"tickformat": ".0%"}) if data else None


def _track(experiment: Experiment, name: str) -> dict[int, float]:
    """Return the accuracy of a network by round, averaged over seeds."""
    accuracies: dict[int, list[float]] = {}
    for run in experiment.counted:
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
    return isinstance(value, Mapping) and all(isinstance(value.get(when), Mapping) for when in ("first", "last"))
