"""Language models on made-up sentences, which need no download: 342,477 clients of five levels, in seconds."""

from __future__ import annotations

from collections.abc import Iterator

from nestling.data.text.synthetic import USERS
from nestling.experiment.presets.preset import Preset
from nestling.settings import Data, Evaluate, Experiment, FleetSettings, LocalTraining, Model

_METHODS = ("fedavg", "heterofl", "fedrolex", "fed-dropout")


def presets() -> Iterator[Preset]:
    """Yield METHOD-words for the methods that the papers try on words."""
    for method in _METHODS:
        experiment = Experiment(
            name=f"{method}-words",
            method=method,
            rounds=12,
            model=Model(name="transformer-nwp", options={"width": 32, "hidden": 64, "depth": 1, "heads": 2}),
            data=Data(name="words", partition="user", vocabulary_size=400),
            fleet=FleetSettings(clients=USERS, per_round=20, levels="a-b-c-d-e"),
            local=LocalTraining(lr=0.3, epochs=2, batch_size=4),
            evaluate=Evaluate(every=4, samples=500),
        )
        yield Preset(experiment, "a demonstration of our own: next words, and a population")
