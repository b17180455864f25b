"""Presets of FedRolex's language model (Alam et al., NeurIPS 2022): Stack Overflow, next words, 342,477 clients.

Names are METHOD-stackoverflow-LEVELS. The body of the paper gives neither learning rate nor rounds, nor how much of a
user's text is used. Rounds, batches and limits are those that Reddi et al. (Adaptive Federated Optimization, ICLR
2021) made usual for this data set; the rate and its fall are those of the paper's experiments on images.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nestling.fleet.mix import FEDROLEX_REAL_WORLD, write_mix
from nestling.local import Local
from nestling.run.config import Data, Evaluate, Experiment, FleetSettings, Model
from nestling.run.presets.mixes import server_and_levels
from nestling.run.presets.preset import Preset

_ALL = "a-b-c-d-e"
_LARGER = {2: "b", 4: "c", 8: "d", 16: "e"}  # γ: how many times the clients' model the server's is, and their level


def presets() -> Iterator[Preset]:
    """Yield every experiment of the paper on Stack Overflow, in the order of its sections."""
    for method in ("heterofl", "fed-dropout", "fedrolex"):
        yield _preset(method, _ALL, "Table 3")
    for level in ("e", "a"):  # also the ends of Figure 3, ρ = 0 and 1
        yield _preset("fedavg", level, "Tables 3 and 4, Figure 3")
    for tenths in range(1, 10):  # ρ, the share of clients that carry the whole model
        yield _preset("fedrolex", f"a{tenths}-e{10 - tenths}", "Figure 3")
    for times, level in _LARGER.items():
        for method in ("fedrolex", "fed-dropout"):
            yield _preset(method, f"server-x{times}", "Figure 4", levels=level)
    yield _preset("fedrolex", "real-world", "Table 4", levels=write_mix(FEDROLEX_REAL_WORLD))


def _preset(method: str, mix: str, where: str, *, levels: str = "") -> Preset:
    # where levels are given, the server keeps the whole model whoever the clients are
    width, own = (1.0, levels) if levels else server_and_levels(mix)
    options: dict[str, Any] = {"masked": True} if method == "fedavg" else {}
    experiment = Experiment(
        name=f"{method}-stackoverflow-{mix}",
        method=method,
        options=options,
        rounds=1500,
        model=Model(name="transformer-nwp", width=width),
        data=Data(name="stackoverflow", partition="user", most_per_client=256),
        fleet=FleetSettings(clients=342_477, per_round=200, levels=own),
        local=Local(
            lr=0.1,
            momentum=0.9,
            weight_decay=1e-3,
            clip=1,
            epochs=1,
            batch=16,
            schedule="steps",
            milestones=(600, 900),
            factor=0.25,
        ),
        evaluate=Evaluate(every=50, samples=10_000, submodels=False),
    )
    return Preset(experiment, f"FedRolex, {where}")
