"""The grand comparison: the methods that train a common model, with one budget of arithmetic. It repeats no paper.

CIFAR-10 divided by Dirichlet(0.5), NeFL's ResNet18 with pool and a quarter of the channels, 100 clients of which ten
take part in a round, for one epoch of batches of ten. Names are METHOD-cifar10-grand-evening.

What was chosen, and why
------------------------
- Left out are the methods whose clients keep models of their own (Standalone, LG-FedAvg, DS-FL), and Fed-ET, whose
  server's model is another, larger one.
- Devices have five sizes in equal shares: sub-models with 0.2, 0.4, 0.6, 0.8 and all of the parameters. Widths are
  roots of these shares. FedAvg and FedProx train the whole model everywhere, which such a fleet could not: they are
  what a fleet of large devices alone would reach.
- All clients of a run compute about 22e12 multiply-accumulates, so methods whose rounds are cheaper have more of them
  (`_ROUNDS`). FedMorph's network shrinks on its way: its rounds stay below the budget at the size that it ends with.
- DepthFL has classifiers after each stage, as its authors train it. Its smallest sub-model is the first stage, and
  prefixes of stages come no nearer to the shares.
- The server of FedDF and FedMorph has a tenth of the training set without labels. The clients of all rows lack these
  samples.
- Learning rates are those of the other evening presets, with momentum, a cosine and clipped gradients for all. Losses
  are not masked: clients hold most classes.
- FedPruned and FedMorph begin with 0.6 of the units, as in FedMorph's tables; FedMorph ends near 0.2 of the parameters.
- Models are tested at every tenth of the rounds, and so of the budget.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nestling.experiment.presets.preset import Preset
from nestling.fleet.levels import NEFL_FIVE
from nestling.settings import Data, Evaluate, Experiment, FleetSettings, LocalTraining, Model

MACS = 22e12  # of all clients of a run
_WIDTHS = [16, 32, 64, 128]
_OPTIONS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "fedprox": {},
    "fedpruned": {"ratio": 0.6},
    "heterofl": {"masked": False},
    "fed-dropout": {"masked": False},
    "fedrolex": {"masked": False},
    "fjord": {},
    "depthfl": {},
    "nefl": {},
    "fedmorph": {"ratio": 0.6, "budget": 0.2, "distil_lr": 0.2},
    "fedmorphprox": {"ratio": 0.6, "budget": 0.2, "distil_lr": 0.2},
    "feddf": {"samples": 512, "steps": 10, "patience": 0, "batch": 64},
}
_ROUNDS = {
    "fedavg": 180,
    "fedprox": 180,
    "fedpruned": 460,
    "heterofl": 280,
    "fed-dropout": 280,
    "fedrolex": 280,
    "fjord": 280,
    "depthfl": 190,
    "nefl": 280,
    "fedmorph": 600,
    "fedmorphprox": 600,
    "feddf": 280,
}
_BY_WIDTH = ("heterofl", "fed-dropout", "fedrolex", "fjord", "feddf")  # levels are shares of the channels
METHODS = tuple(_OPTIONS)


def presets() -> Iterator[Preset]:
    """Yield the run of every method."""
    for method in METHODS:
        yield Preset(_experiment(method), "the grand comparison (an evening)")


def _experiment(method: str) -> Experiment:
    rounds = _ROUNDS[method]
    shares = [level.ratio**0.5 if method in _BY_WIDTH else level.ratio for level in NEFL_FIVE]
    levels = "1" if "morph" in method else "-".join(f"{share:.4g}" for share in shares)
    exits = method == "depthfl"
    steps = {} if exits else {"learn_steps": method == "nefl"}
    return Experiment(
        name=f"{method}-cifar10-grand-evening",
        method=method,
        options=dict(_OPTIONS[method]),
        rounds=rounds,
        model=Model(name="resnet18-exits" if exits else "resnet18", options={"widths": _WIDTHS, "pool": True, **steps}),
        data=Data(name="cifar10", partition="dirichlet", alpha=0.5, public_share=0.1),
        fleet=FleetSettings(clients=100, per_round=10, levels=levels),
        local=LocalTraining(
            lr=0.1, momentum=0.9, weight_decay=5e-4, clip_norm=1, epochs=1, batch_size=10, schedule="cosine"
        ),
        evaluate=Evaluate(every=rounds // 10, norm_clients=10),
    )
