"""Slow devices on scikit-learn's digits: rounds that wait for all, for the first, or for nobody, on one fleet.

Devices are online at random, so that about ten clients train at a time in each of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from nestling.experiment.presets.preset import Preset
from nestling.settings import Data, Evaluate, Experiment, FleetSettings, LocalTraining, Model, ServerSettings

_OURS = "a demonstration of our own"


def presets() -> Iterator[Preset]:
    """Yield the same experiment with synchronous, over-selected and buffered rounds, about as long by the clock."""
    waiting = Experiment(
        name="waiting-digits",
        method="heterofl",
        rounds=12,
        # so wide that sensors cannot carry level a
        model=Model(name="mlp", options={"widths": [1024, 1024]}),
        data=Data(name="digits", partition="dirichlet", alpha=1.0),
        fleet=FleetSettings(
            clients=40,
            per_round=27,
            levels="a-b-c",
            devices="sensor:1,phone-low:2,phone-mid:3,phone-high:2,laptop:2",
        ),
        local=LocalTraining(lr=0.1, epochs=1, batch_size=10),
        evaluate=Evaluate(),
    )
    yield Preset(waiting, f"{_OURS}: rounds wait for their slowest client")
    over = replace(waiting.fleet, over_selection=1.3)
    yield Preset(replace(waiting, name="over-selected-digits", rounds=20, fleet=over), f"{_OURS}: and for the first")
    buffered = replace(
        waiting,
        name="buffered-digits",
        rounds=75,
        fleet=replace(waiting.fleet, per_round=10),
        server=ServerSettings(buffer=5),
        evaluate=replace(waiting.evaluate, every=3),
    )
    yield Preset(buffered, f"{_OURS}: and for nobody (FedBuff)")
