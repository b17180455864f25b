"""Presets of HeteroFL's language model (Diao et al., ICLR 2021): WikiText-2, masked words.

Names are METHOD-wikitext2-iid-LEVELS; with ``-fix`` clients keep their level in all rounds, as in the paper's figures.
Table 6 gives a local batch size of 100: that is how many rows the text is cut into, one for each of 100 clients, who
train on one window of 64 words at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nestling.experiment.presets.heterofl import every_mix, two_levels
from nestling.experiment.presets.mixes import server_and_levels
from nestling.experiment.presets.preset import Preset
from nestling.settings import Data, Evaluate, Experiment, FleetSettings, LocalTraining, Model

_BESIDE = ("fedrolex", "fed-dropout")


def presets() -> Iterator[Preset]:
    """Yield every experiment of the paper on WikiText-2, in the order of its tables and figures."""
    for method, mix, where in every_mix("3", "9", "Figure 4"):
        yield _preset(method, mix, where)
    for mix, even in two_levels():
        yield _preset("heterofl", mix, "Figures 4 and 11" if even else "Figure 4", fixed=True)
    for method in _BESIDE:
        yield _preset(method, "a-b-c-d-e", "its settings with a method not in its tables")


def _preset(method: str, mix: str, where: str, *, fixed: bool = False) -> Preset:
    width, levels = server_and_levels(mix)
    options: dict[str, Any] = {"masked": True} if method == "fedavg" else {}
    experiment = Experiment(
        name=f"{method}-wikitext2-iid-{mix}{'-fix' if fixed else ''}",
        method=method,
        options=options,
        rounds=200,
        model=Model(name="transformer-mlm", width=width),
        data=Data(name="wikitext2", partition="iid"),
        fleet=FleetSettings(clients=100, per_round=10, levels=levels, assign="fixed" if fixed else "dynamic"),
        local=LocalTraining(
            lr=0.1,
            momentum=0.9,
            weight_decay=5e-4,
            clip_norm=1,
            epochs=1,
            batch_size=1,
            schedule="steps",
            milestones=(50, 100),
            lr_decay=0.1,
        ),
        evaluate=Evaluate(every=10, submodels=False),
    )
    return Preset(experiment, f"HeteroFL, {where}")
