"""Presets of HeteroFL's language model (Diao et al., ICLR 2021): WikiText-2, masked words.

Names are METHOD-wikitext2-iid-LEVELS; ``-fix`` says that clients keep their level for good, as in the paper's figures.
Table 6 gives a local batch size of 100: that is how many rows the text is cut into, one for each of 100 clients, who
train on one window of 64 words at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any

from nestling.fleet.levels import LEVELS
from nestling.local import Local
from nestling.run.config import Data, Evaluate, Experiment, FleetSettings, Model
from nestling.run.presets.mixes import server_and_levels
from nestling.run.presets.preset import Preset

_EXCERPT = {"a", "a-e", "a-b-c-d-e", "b", "b-e", "b-c-d-e", "c", "c-e", "c-d-e", "d", "d-e", "e"}  # of Table 3
_BESIDE = ("fedrolex", "fed-dropout")


def presets() -> Iterator[Preset]:
    """Yield every experiment of the paper on WikiText-2, in the order of its tables and figures."""
    for count in range(1, len(LEVELS) + 1):
        for levels in combinations(LEVELS, count):
            mix = "-".join(levels)
            where = "Tables 3 and 9" if mix in _EXCERPT else "Table 9"
            # one level alone is FedAvg with the masked loss (Section 4), and the end of a figure's line
            if count == 1 and mix != "e":
                where += ", Figure 4"
            yield _preset("fedavg" if count == 1 else "heterofl", mix, where)
    for large, small in combinations(LEVELS, 2):
        for tenths in range(1, 10):
            where = "Figures 4 and 11" if tenths == 5 else "Figure 4"
            yield _preset("heterofl", f"{large}{tenths}-{small}{10 - tenths}", where, fixed=True)
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
        local=Local(
            lr=0.1,
            momentum=0.9,
            weight_decay=5e-4,
            clip=1,
            epochs=1,
            batch=1,
            schedule="steps",
            milestones=(50, 100),
            factor=0.1,
        ),
        evaluate=Evaluate(every=10, submodels=False),
    )
    return Preset(experiment, f"HeteroFL, {where}")
