"""Presets of FedRolex's language model (Alam et al., NeurIPS 2022): Stack Overflow, next words, 342,477 clients.

Names are METHOD-stackoverflow-LEVELS. The body of the paper gives neither learning rate nor rounds: they are those of
the commands that the authors published, lr 2e-4, weight decay 5e-4, one epoch of batches of 24, 1,500 rounds, a tenth
of the rate after 600 and 1,000. These leave open

- momentum and clipping, which are HeteroFL's (0.9 and 1);
- whether clients keep their level: it is drawn anew each round, as in the authors' commands for images;
- how much of a user's text is used: at most 256 sequences, which Reddi et al. (Adaptive Federated Optimization, ICLR
  2021) made usual for this data set.

The loss is not masked: the paper does not mention it for words, and the commands have it commented out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nestling.experiment.presets.fedrolex import fleets
from nestling.experiment.presets.mixes import server_and_levels
from nestling.experiment.presets.preset import Preset
from nestling.settings import Data, Evaluate, Experiment, FleetSettings, LocalTraining, Model

_SOURCE = "settings of the authors' commands, momentum and clipping of HeteroFL, sequences of Reddi et al."


def presets() -> Iterator[Preset]:
    """Yield every experiment of the paper on Stack Overflow, in the order of its sections."""
    for method, mix, where, levels in fleets("Table 4"):
        yield _preset(method, mix, where, levels)


def _preset(method: str, mix: str, where: str, levels: str) -> Preset:
    # where levels are given, the server keeps the whole model whoever the clients are
    width, own = (1.0, levels) if levels else server_and_levels(mix)
    options: dict[str, Any] = {} if method == "fedavg" else {"masked": False}
    experiment = Experiment(
        name=f"{method}-stackoverflow-{mix}",
        method=method,
        options=options,
        rounds=1500,
        model=Model(name="transformer-nwp", width=width),
        data=Data(name="stackoverflow", partition="user", max_sequences=256),
        fleet=FleetSettings(clients=342_477, per_round=200, levels=own, assign="dynamic"),
        local=LocalTraining(
            lr=2e-4,
            momentum=0.9,
            weight_decay=5e-4,
            clip_norm=1,
            epochs=1,
            batch_size=24,
            schedule="steps",
            milestones=(600, 1000),
            lr_decay=0.1,
        ),
        evaluate=Evaluate(every=50, samples=10_000, submodels=False),
    )
    return Preset(experiment, f"FedRolex, {where}", _SOURCE)
