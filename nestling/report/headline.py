"""The result in one sentence: which method is best, by how much, and at what cost."""

from __future__ import annotations

from collections.abc import Sequence

from nestling.amounts import BYTES, amount
from nestling.report.measures import digits, direction, is_share, leading, title, written
from nestling.report.table import Row, metrics_of

METHODS = {
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "standalone": "Standalone",
    "lg-fedavg": "LG-FedAvg",
    "fedpruned": "FedPruned",
    "heterofl": "HeteroFL",
    "fed-dropout": "Federated Dropout",
    "fedrolex": "FedRolex",
    "fjord": "FjORD",
    "depthfl": "DepthFL",
    "nefl": "NeFL",
    "fedmorph": "FedMorph",
    "fedmorphprox": "FedMorphProx",
    "feddf": "FedDF",
    "ds-fl": "DS-FL",
    "fed-et": "Fed-ET",
    "lora": "LoRA",
}


def headline(rows: Sequence[Row]) -> tuple[str, list[str]]:
    """Return a heading, and a sentence for every combination of dataset and partition.

    The sentence says if a lead is smaller than the spread over seeds. Unfinished experiments count only if none is
    finished, and the sentence says so.

    >>> headline([])
    ('Nothing was measured yet', [])
    """
    contests: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        name = leading(row["final"], metrics_of(row))
        if name and row["final"][name]:
            contests.setdefault((row["dataset"], row["partition"], name), []).append(row)
    if not contests:
        return "Nothing was measured yet", []
    results = [_result(rows, where, contest) for where, contest in contests.items()]
    if len(results) == 1:
        return results[0][0], [results[0][1]]
    return f"{len(rows)} experiments on {len(results)} tasks", [f"{heading} {rest}" for heading, rest in results]


def _result(rows: Sequence[Row], where: tuple[str, str, str], contest: Sequence[Row]) -> tuple[str, str]:
    dataset, partition, name = where
    entered = [row for row in contest if row["finished"]] or list(contest)
    metrics = metrics_of(entered[0])
    way = direction(name, entered[0]["final"][name]["mean"], metrics)
    ranked = sorted(entered, key=lambda row: -way * row["final"][name]["mean"])
    first = ranked[0]
    value = first["final"][name]
    measure = "" if name == "global_accuracy" else f" {title(name)}"
    heading = f"{_who(rows, first)} reaches {written(name, value['mean'], metrics=metrics)}{measure}"
    parts = [f"on {dataset or 'its data'}{f' ({partition})' if partition else ''} after {first['rounds']} rounds"]
    if not first["finished"]:
        parts[0] += " so far, unfinished"
    if len(ranked) > 1:
        parts.append(_lead(rows, name, first, ranked[1]))
    worst = first["final"].get("worst_submodel")
    if worst:
        parts.append(f"with {written('worst_submodel', worst['mean'], metrics=metrics)} for its worst sub-model")
    if first["bytes"]:
        parts.append(f"for {amount(first['bytes']['mean'], BYTES)} sent")
    return heading, ", ".join(parts) + "."


def _lead(rows: Sequence[Row], name: str, first: Row, second: Row) -> str:
    one, two = first["final"][name], second["final"][name]
    gap = abs(one["mean"] - two["mean"])
    if gap == 0:
        return f"level with {_who(rows, second)}"
    far = f"{100 * gap:.1f} points" if is_share(name, one["mean"], metrics_of(first)) else digits(gap, 3)
    spread = max(one["deviation"] or 0, two["deviation"] or 0)
    close = " (less than the spread over seeds)" if gap < spread else ""
    return f"{far} ahead of {_who(rows, second)}{close}"


def _who(rows: Sequence[Row], row: Row) -> str:
    """Return the name of the method if it is unique among the rows, else the name of the experiment."""
    alone = sum(other["method"] == row["method"] for other in rows) == 1
    return str(METHODS.get(row["method"], row["experiment"]) if alone else row["experiment"])
