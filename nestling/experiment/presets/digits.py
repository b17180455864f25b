"""Every method on scikit-learn's digits, which need no download: 20 clients of five levels, in seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from msgspec.structs import replace

from nestling.experiment.presets.preset import Preset
from nestling.methods import names
from nestling.settings import Data, Evaluate, Experiment, FleetSettings, LocalTraining, Model

_OURS = "a demonstration of our own"
# Methods that leave out blocks: the net, and its levels; with a classifier after every stage, what the stages hold.
_RESIDUAL = {"nefl": ("resnet18", "0.2-0.4-0.6-0.8-1"), "depthfl": ("resnet18-exits", "0.1-0.2-0.6-1")}


def presets() -> Iterator[Preset]:
    """Yield METHOD-digits for every method, and FedAvg where everybody trains the largest or the smallest level."""
    for method in names():
        yield Preset(_MADE.get(method, _digits)(method), _OURS)
    plain = replace(_residual("nefl"), name="depthfl-plain-digits", method="depthfl", options={"variant": "plain"})
    yield Preset(plain, f"{_OURS}: DepthFL with one classifier, as NeFL compares it")
    fedavg = _digits("fedavg")
    yield Preset(replace(fedavg, name="fedavg-large-digits"), f"{_OURS}: what mixed fleets can hope for")
    small = replace(fedavg, name="fedavg-small-digits", model=replace(fedavg.model, width=1 / 16))
    yield Preset(small, f"{_OURS}: what mixed fleets must beat")


def _digits(method: str) -> Experiment:
    return Experiment(
        name=f"{method}-digits",
        method=method,
        rounds=12,
        # three stages, not four: images of 8×8 are 2×2 after two pools
        model=Model(name="cnn", options={"widths": [32, 64, 128]}),
        data=Data(name="digits"),
        fleet=FleetSettings(clients=20, per_round=10, levels="a-b-c-d-e"),
        local=LocalTraining(lr=0.1, epochs=3, batch_size=20),
        evaluate=Evaluate(every=4, norm_clients=10, norm_batch=100),
    )


def _residual(method: str) -> Experiment:
    """The same with a net that has blocks; levels are shares of the parameters."""
    digits = _digits(method)
    name, levels = _RESIDUAL[method]
    return replace(
        digits,
        model=Model(name=name, options={"widths": [16, 16, 32, 32], "pool": False}),
        fleet=replace(digits.fleet, levels=levels, assign="tiers"),
    )


def _morphed(method: str) -> Experiment:
    """The same with a fifth of the samples at the server, and everybody at one level."""
    digits = _digits(method)
    return replace(
        digits,
        options={"ratio": 0.5, "every": 4, "penalty": 1e-4, "mask_lr": 10.0},
        data=replace(digits.data, public_share=0.2),
        fleet=replace(digits.fleet, levels="a"),
    )


def _adapted(method: str) -> Experiment:
    """The same with a perceptron that is not trained but for adapters of rank 16; levels are shares of the rank."""
    return replace(_digits(method), model=Model(name="mlp", options={"widths": [128, 128], "rank": 16}))


def _distilled(method: str) -> Experiment:
    """The same with a fifth of the samples at the server, and distillations of seconds."""
    digits = _digits(method)
    levels = "b-c-d-e" if method == "fed-et" else digits.fleet.levels  # its server's model is larger than all others
    return replace(
        digits,
        options=dict(_DISTILLED[method]),
        data=replace(digits.data, public_share=0.2),
        fleet=replace(digits.fleet, levels=levels),
    )


_DISTILLED: dict[str, dict[str, Any]] = {
    "feddf": {"steps": 20, "patience": 0, "batch": 64},
    "ds-fl": {"samples": 100, "epochs": 3, "batch": 20},
    "fed-et": {"steps": 30, "lr": 0.05},
}
_MADE: dict[str, Callable[[str], Experiment]] = {
    "nefl": _residual,
    "depthfl": _residual,
    "fedmorph": _morphed,
    "fedmorphprox": _morphed,
    "lora": _adapted,
    **dict.fromkeys(_DISTILLED, _distilled),
}
