"""Presets of FedRolex's language model (Alam et al., NeurIPS 2022): Stack Overflow, next words, 342,477 clients.

Names are METHOD-stackoverflow-LEVELS. The body of the paper gives neither learning rate nor rounds, nor how much of a
user's text is used. Rounds, batches and limits are those that Reddi et al. (Adaptive Federated Optimization, ICLR
2021) made usual for this data set; the rate and its fall are those of the paper's experiments on images.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nestling.experiment.presets.fedrolex import fleets
from nestling.experiment.presets.mixes import server_and_levels
from nestling.experiment.presets.preset import Preset
from nestling.settings import Data, Evaluate, Experiment, FleetSettings, LocalTraining, Model


def presets() -> Iterator[Preset]:
    """Yield every experiment of the paper on Stack Overflow, in the order of its sections."""
    for method, mix, where, levels in fleets("Table 4"):
        yield _preset(method, mix, where, levels)


def _preset(method: str, mix: str, where: str, levels: str) -> Preset:
    # where levels are given, the server keeps the whole model whoever the clients are
    width, own = (1.0, levels) if levels else server_and_levels(mix)
    options: dict[str, Any] = {"masked": True} if method == "fedavg" else {}
    experiment = Experiment(
        name=f"{method}-stackoverflow-{mix}",
        method=method,
        options=options,
        rounds=1500,
        model=Model(name="transformer-nwp", width=width),
        data=Data(name="stackoverflow", partition="user", max_sequences=256),
        fleet=FleetSettings(clients=342_477, per_round=200, levels=own),
        local=LocalTraining(
            lr=0.1,
            momentum=0.9,
            weight_decay=1e-3,
            clip_norm=1,
            epochs=1,
            batch_size=16,
            schedule="steps",
            milestones=(600, 900),
            lr_decay=0.25,
        ),
        evaluate=Evaluate(every=50, samples=10_000, submodels=False),
    )
    return Preset(experiment, f"FedRolex, {where}")
