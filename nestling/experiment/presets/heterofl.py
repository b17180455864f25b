"""Presets of HeteroFL (Diao et al., ICLR 2021): all its experiments on images, from four small tables.

Names are METHOD-DATA-PARTITION-LEVELS, then what differs. Levels count from model a, as in the paper's tables
(see `mixes`). Tables draw levels anew each round; figures fix them, which ``-fix`` says.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any

from nestling.experiment.presets.mixes import server_and_levels
from nestling.experiment.presets.preset import Preset
from nestling.fleet.levels import LEVELS
from nestling.settings import Data, Evaluate, Experiment, FleetSettings, LocalTraining, Model

# Table 6: model, learning rate, and by partition the rounds and when the learning rate falls to a tenth. Its "ResNet18"
# is the one with blocks [1, 1, 1, 2], to which the parameters in Table 8 belong.
_SETTINGS: dict[str, tuple[str, float, dict[str, tuple[int, tuple[int, ...]]]]] = {
    "mnist": ("cnn", 0.01, {"iid": (200, (100,)), "noniid": (400, (200,))}),
    "cifar10": ("preresnet18-paper", 0.1, {"iid": (400, (150, 250)), "noniid": (800, (300, 500))}),
}
_CLASSES = {"iid": 0, "noniid": 2}  # of a client; 0: all of them

_TABLES = {"mnist": ("1", "7"), "cifar10": ("2", "8")}  # an excerpt, and all mixes
_EXCERPT = {"a", "a-e", "a-b-c-d-e", "b", "b-e", "b-c-d-e", "c", "c-e", "c-d-e", "d", "d-e", "e"}
_FIGURES = {
    ("mnist", "iid"): "Figure 3",
    ("cifar10", "iid"): "Figure 2",
    ("mnist", "noniid"): "Figures 5 and 7",
    ("cifar10", "noniid"): "Figures 6 and 8",
}
_CURVES = {"mnist": "Figure 9", "cifar10": "Figure 10"}  # of mixes half and half

# Tables 4 and 5, row by row, without the rows that stand in the other tables too: levels, Scaler, masked loss, norms.
# "bn" is the paper's sBN: norms are static in every method here.
_ABLATION: dict[str, tuple[tuple[str, bool, bool, tuple[str, ...]], ...]] = {
    "iid": (
        ("a", True, True, ("none", "in", "gn", "ln")),
        ("e", True, True, ("none", "in", "gn", "ln")),
        ("a-e", False, True, ("none", "bn")),
        ("a-e", True, True, ("in", "gn", "ln")),
    ),
    "noniid": (
        ("a", True, False, ("none", "bn")),
        ("a", True, True, ("none", "in", "gn", "ln")),
        ("e", True, False, ("none", "bn")),
        ("e", True, True, ("none", "in", "gn", "ln")),
        ("a-e", False, False, ("none", "bn")),
        ("a-e", False, True, ("none", "bn")),
        ("a-e", True, False, ("none", "bn")),
        ("a-e", True, True, ("none", "in", "gn", "ln")),
    ),
}

# The tables quote Standalone, FedAvg and LG-FedAvg from Liang et al. (2020), who train a perceptron and another
# convolutional net. Here they train model a, so that methods alone differ; FedAvg is then the unmasked "a" of Table 5
# (with IID data every client holds every class, and masks change nothing).
_QUOTED = ("standalone", "lg-fedavg")
_BESIDE = {"fedprox": "a", "fedrolex": "a-b-c-d-e", "fed-dropout": "a-b-c-d-e", "fjord": "a-b-c-d-e"}


def presets() -> Iterator[Preset]:
    """Yield every experiment of the paper on images, in the order of its tables and figures."""
    for data in _SETTINGS:
        for partition in _CLASSES:
            yield from _tables(data, partition)
            yield from _figures(data, partition)
            yield from _ablation(data, partition)
            yield from _baselines(data, partition)


def _tables(data: str, partition: str) -> Iterator[Preset]:
    for method, mix, where in every_mix(*_TABLES[data], _FIGURES[data, partition]):
        yield _preset(method, data, partition, mix, where)


def _figures(data: str, partition: str) -> Iterator[Preset]:
    for mix, even in two_levels():
        where = _FIGURES[data, partition] + (f", {_CURVES[data]}" if even else "")
        yield _preset("heterofl", data, partition, mix, where, fixed=True)


def every_mix(excerpt: str, full: str, figures: str) -> Iterator[tuple[str, str, str]]:
    """Yield all 31 mixes of levels, each with its method and where in the paper it is.

    One level alone is FedAvg with static norms and masked loss (Section 4).
    """
    for count in range(1, len(LEVELS) + 1):
        for levels in combinations(LEVELS, count):
            mix = "-".join(levels)
            where = f"Tables {excerpt} and {full}" if mix in _EXCERPT else f"Table {full}"
            if count == 1 and mix != "e":  # the right end of a figure's lines: 100 % of the larger level
                where += f", {figures}"
            yield _method(mix), mix, where


def two_levels() -> Iterator[tuple[str, bool]]:
    """Yield mixes of 10 % to 90 % of clients at the larger of two levels; and whether it is half and half."""
    for large, small in combinations(LEVELS, 2):
        for tenths in range(1, 10):
            yield f"{large}{tenths}-{small}{10 - tenths}", tenths == 5


def _ablation(data: str, partition: str) -> Iterator[Preset]:
    """Norms, Scaler and masked loss."""
    where = "Table 4" if partition == "iid" else "Table 5"
    for mix, scaler, masked, norms in _ABLATION[partition]:
        for norm in norms:
            yield _preset(_method(mix), data, partition, mix, where, norm=norm, scaler=scaler, masked=masked)


def _baselines(data: str, partition: str) -> Iterator[Preset]:
    """Other methods under the same settings."""
    for method in _QUOTED:
        where = f"Tables {' and '.join(_TABLES[data])}, on model a"
        yield _preset(method, data, partition, "a", where)
    for method, mix in _BESIDE.items():
        yield _preset(method, data, partition, mix, "its settings with a method not in its tables")


def _method(mix: str) -> str:
    return "heterofl" if "-" in mix else "fedavg"


def _preset(
    method: str,
    data: str,
    partition: str,
    mix: str,
    where: str,
    *,
    fixed: bool = False,
    norm: str = "bn",
    scaler: bool = True,
    masked: bool = True,
) -> Preset:
    model, rate, by_partition = _SETTINGS[data]
    rounds, milestones = by_partition[partition]
    width, levels = server_and_levels(mix)
    classes = _CLASSES[partition]
    options: dict[str, Any] = {}
    if method == "fedavg":
        options["masked"] = masked
    if method == "heterofl":
        options |= {"scaler": scaler, "masked": masked}
    words = {f"norm-{norm}": norm != "bn", "unscaled": not scaler, "unmasked": not masked, "fix": fixed}
    experiment = Experiment(
        name="-".join([method, data, partition, mix, *(word for word, applies in words.items() if applies)]),
        method=method,
        options=options,
        rounds=rounds,
        model=Model(name=model, options={"norm": norm}, width=width),
        data=Data(name=data, partition="classes" if classes else "iid", classes_per_client=classes),
        fleet=FleetSettings(clients=100, per_round=10, levels=levels, assign="fixed" if fixed else "dynamic"),
        local=LocalTraining(
            lr=rate,
            momentum=0.9,
            weight_decay=5e-4,
            clip_norm=1,
            epochs=5,
            batch_size=10,
            schedule="steps",
            milestones=milestones,
            lr_decay=0.1,
        ),
        evaluate=Evaluate(every=10, local="masked" if masked else "unmasked"),
    )
    return Preset(experiment, f"HeteroFL, {where}")
