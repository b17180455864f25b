"""Panels of methods that prune what they send: what was kept where, and how their networks compare (FedMorph)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from nestling.report.experiment import Experiment, experiments
from nestling.report.panels import DASHES, Figure, colour, figure, label, line, mark, panel, tint
from nestling.report.read import Run

_NETWORKS = {  # the network → how it is drawn
    "server": "solid",
    "averaged": "dash",
    "morphed": "dot",
}
assert set(_NETWORKS.values()) <= set(DASHES)


@panel(
    "Generalisation gap",
    "Accuracy of clients on their own samples while training, less that of the global model on the test set.",
)
def gap(runs: Sequence[Run]) -> Figure | None:
    """Draw training accuracy, averaged since the evaluation before, less test accuracy (FedMorph, Figures 4 and 8)."""
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
    found, seen = {}, []
    for entry in run.history:
        if entry.train_accuracy is not None:
            seen.append(entry.train_accuracy)
        tested = entry.measured.values.get("global_accuracy") if entry.measured else None
        if tested is not None and seen:
            found[entry.round] = sum(seen) / len(seen) - tested
            seen = []
    return found


@panel("Units kept", "The share of every axis in the first network that clients got (pale) and in the last.", wide=True)
def kept(runs: Sequence[Run]) -> Figure | None:
    """Draw how much of every axis is kept, first and last (FedMorph, Figures 3 and 7)."""
    data: list[dict[str, Any]] = []
    for experiment in experiments(runs):
        found = next((run.panels["kept"] for run in experiment.counted if _told(run.panels.get("kept"))), None)
        if found is None:
            continue
        for when, shade in (("first", tint(experiment.number, 0.35)), ("last", colour(experiment.number))):
            shares = {axis: share for axis, share in found[when].items() if isinstance(share, int | float)}
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
    "The large network (solid), the small one as clients' average (dashed), and just after it was pruned (dotted).",
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
    """The accuracy of a network after the rounds in which it came up, averaged over seeds."""
    found: dict[int, list[float]] = {}
    for run in experiment.counted:
        for entry in run.history:
            told = entry.evaluation.get("networks") if entry.evaluation else None
            if not isinstance(told, Mapping):
                continue
            tested = entry.evaluation.get("global_accuracy") if entry.evaluation and name == "server" else None
            value = tested if name == "server" else told.get(name, {}).get("accuracy")
            if isinstance(value, int | float):
                found.setdefault(entry.round, []).append(float(value))
    return {round: sum(values) / len(values) for round, values in sorted(found.items())}


def _told(found: Any) -> bool:
    """Whether a run tells of the first and the last network: when → axis → share."""
    return isinstance(found, Mapping) and all(isinstance(found.get(when), Mapping) for when in ("first", "last"))
