"""The same experiment on the whole data set, small enough for two cores and an evening.

Only the rows that decide a paper's claims have such a version (`ROWS`). All of them train on the whole data set, with
100 clients of which ten take part in a round, for one epoch of batches of ten.

What was chosen, and why
------------------------
- A run trains with at most 45e12 multiply-accumulates and 130,000 steps of SGD; where everybody trains model a, with
  twice as many. HeteroFL's net for MNIST keeps its full width, so its rows have 120 rounds instead of the paper's 200.
- On CIFAR-10 HeteroFL and FedRolex train the pre-activation ResNet18 with blocks [1, 1, 1, 2] and a quarter of the
  channels, so level e has a single channel in the first stage. The depth is HeteroFL's; FedRolex's own net has blocks
  [2, 2, 2, 2]. In 256 rounds a rolling window goes twice round the widest axis, which has 128 units.
- NeFL's ResNet18 keeps its pool and has a quarter of the channels, and so has FedMorph's ResNet8.
- Learning rates start at 0.1 and fall to zero along a cosine, with momentum 0.9 and gradients clipped at 1: those of
  the ``-laptop`` presets, whose clients take about as many steps in a round. A cosine has no plateaus to wait for, and
  both turns of a rolling window learn. FedRolex's authors use a constant 2e-4 for most of 3,200 rounds: at that rate
  256 rounds would end far from convergence.
- FedMorph's learning rate is constant and its gradients are not clipped, as in the paper; 0.025 is that of its
  ``-laptop`` presets, halved with the batch. The server gets 5,000 samples and morphs 20 times, every ten rounds, so
  masks take 4,000 steps instead of the paper's 60,000; λ is sixteen times as large and the first network keeps a third
  of the units for the reasons given there (`fedmorph.small`).
- The servers of FedDF and Fed-ET draw 512 of their 5,000 samples in a round and take ten steps, which costs about half
  as much again as all clients; Fed-ET's rate is four times its usual one. DS-FL's clients learn 400 labels in two
  passes, which costs more than their own samples, so it has 160 rounds; its clients' own models are not tested.
- Momentum is ours for NeFL, which has none and 500 rounds of five epochs. Weight decay is each paper's own.
- Models are tested every 32 rounds, on the whole test set; statistics of norms are those of ten clients.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from msgspec.structs import replace

from nestling.errors import ConfigError
from nestling.settings import Evaluate, Experiment, LocalTraining

_QUARTER = [16, 32, 64, 128]
# model → its options here, and rounds
_MODELS: dict[str, tuple[dict[str, Any], int]] = {
    "cnn": ({}, 120),
    "preresnet18": ({"widths": _QUARTER, "depths": [1, 1, 1, 2]}, 256),
    "preresnet18-paper": ({"widths": _QUARTER}, 256),
    "resnet18": ({"widths": _QUARTER}, 256),
    "resnet8": ({"widths": _QUARTER}, 200),
}
# method → its options here
_DISTILLATIONS: dict[str, dict[str, Any]] = {
    "feddf": {"samples": 512, "steps": 10, "patience": 0, "batch": 64},
    "ds-fl": {"samples": 400, "epochs": 2, "batch": 50},
    "fed-et": {"samples": 512, "steps": 10, "batch": 64, "lr": 0.02},
}
_ROUNDS = {"ds-fl": 160}  # method → rounds, if not as many as usual with its model
_PUBLIC = {"mnist": 5000 / 60_000}  # the share of the training set that FedMorph's server gets

_ENDS = (("fedavg", "e"), ("fedavg", "a"))  # everybody trains the smallest model, or the largest
_HETEROFL = (("heterofl", "a-b-c-d-e"), ("heterofl", "a-e"), *_ENDS)
_DISTILLING = tuple((method, "a-b-c-d-e") for method in _DISTILLATIONS)
_FEDROLEX = (*((method, "a-b-c-d-e") for method in ("heterofl", "fed-dropout", "fedrolex")), *_ENDS, *_DISTILLING)
_NEFL = ("heterofl", "fjord", "fjord-nefl", "depthfl", "depthfl-nefl", "nefl")
ROWS = (
    *(f"{method}-{data}-iid-{mix}" for data in ("mnist", "cifar10") for method, mix in _HETEROFL),  # Tables 1 and 2
    *(f"{method}-cifar10-{classes}-{mix}" for classes in ("high", "low") for method, mix in _FEDROLEX),  # Table 3
    *(f"fedrolex-cifar10-low-{mix}" for mix in ("a1-e9", "a3-e7", "a5-e5")),  # Figure 3: larger ρ exceed the budget
    *(f"{method}-cifar10-iid-resnet18" for method in _NEFL),  # NeFL, Table 1
    *(f"{method}-mnist-resnet8-iid" for method in ("fedavg", "fedpruned", "fedmorph")),  # FedMorph, Table 4
)


def evening(experiment: Experiment) -> Experiment:
    """Return an experiment as it fits into an evening: same method, levels, clients and partition; see above.

    >>> from nestling.experiment.presets import find
    >>> small = evening(find("fedrolex-cifar10-low-a-b-c-d-e"))
    >>> small.name, small.rounds, small.data.max_samples, small.fleet.levels
    ('fedrolex-cifar10-low-a-b-c-d-e-evening', 256, 0, 'a-b-c-d-e')
    """
    model = experiment.model
    if model.name not in _MODELS:
        raise ConfigError(
            f"there is no evening version of experiments with {model.name}: there is for {', '.join(_MODELS)}"
        )
    own, rounds = _MODELS[model.name]
    small = replace(
        experiment,
        name=f"{experiment.name}-evening",
        rounds=_ROUNDS.get(experiment.method, rounds),
        options={**experiment.options, **_DISTILLATIONS.get(experiment.method, {})},
        model=replace(model, options=deepcopy({**model.options, **own})),
        fleet=replace(experiment.fleet, clients=100, per_round=10),
        local=_training(experiment.local),
        evaluate=Evaluate(every=32, norm_clients=10, submodels=experiment.evaluate.submodels),
    )
    return _morphing(small) if model.name == "resnet8" else small


def _training(local: LocalTraining) -> LocalTraining:
    return replace(
        local,
        lr=0.1,
        momentum=0.9,
        clip_norm=1,
        epochs=1,
        batch_size=10,
        schedule="cosine",
        milestones=(),
        lr_decay=0.1,
        warmup_rounds=0,
    )


def _morphing(experiment: Experiment) -> Experiment:
    """A row of FedMorph's tables: without clipping, at a constant rate, and samples for the server in all of them."""
    options = dict(experiment.options)
    if "morph" in experiment.method:
        options |= {"ratio": 0.35, "penalty": options["penalty"] * 16, "distil_lr": 0.2}
    return replace(
        experiment,
        options=options,
        data=replace(experiment.data, public_share=_PUBLIC[experiment.data.name]),
        local=replace(experiment.local, lr=0.025, clip_norm=0, schedule="constant"),
    )
