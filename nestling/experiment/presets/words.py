"""Language models on made-up sentences, which need no download: 342,477 clients of five levels, in seconds.

METHOD-words-private…-laptop: what differential privacy costs, for 10,000 of these clients, of whom 200 take part in a
round on average, each drawn by itself. They write 200 words and not 400, so that 30 rounds are enough to learn them.
"""

from __future__ import annotations

from collections.abc import Iterator

from nestling.data.text.synthetic import USERS
from nestling.experiment.presets.preset import Preset
from nestling.settings import Data, Evaluate, Experiment, FleetSettings, LocalTraining, Model, ServerSettings

_METHODS = ("fedavg", "heterofl", "fedrolex", "fed-dropout")
_PRIVATE = {"none": "", "epsilon8": "dp:clip=1:epsilon=8", "epsilon8-adaptive": "dp:clip=0.5:epsilon=8:quantile=0.5"}


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
    for method in ("fedavg", "heterofl"):
        for name, parts in _PRIVATE.items():
            experiment = Experiment(
                name=f"{method}-words-private-{name}-laptop",
                method=method,
                options={"masked": False},
                parts=parts,
                rounds=30,
                model=Model(name="transformer-nwp", options={"width": 32, "hidden": 64, "depth": 1, "heads": 2}),
                data=Data(name="words", partition="user", vocabulary_size=200),
                fleet=FleetSettings(clients=10_000, per_round=200, levels="a-b-c-d-e", sampling="poisson"),
                local=LocalTraining(lr=0.3, epochs=1, batch_size=4),
                server=ServerSettings(optimizer="fedadam", lr=0.05),
                evaluate=Evaluate(every=10, samples=500),
            )
            yield Preset(experiment, "a demonstration of our own: what differential privacy costs")
