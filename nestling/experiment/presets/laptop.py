"""The same experiment, small enough for one core of a laptop: about a minute instead of days."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from msgspec.structs import replace

from nestling.data import TEXTS
from nestling.settings import Evaluate, Experiment, FleetSettings, Model

_WIDTHS = [16, 32, 64, 128]  # a quarter of the papers'; level e of the first is one channel (with GroupNorm, four)
_PRIVATE = ("standalone", "lg-fedavg", "ds-fl")  # every client tests a model of its own, so fewer samples must do

# Distillations that cost the server no more than twice what training costs all clients; it has 500 samples.
_DISTILLATIONS: dict[str, dict[str, Any]] = {
    "feddf": {"samples": 256, "steps": 10, "patience": 0, "batch": 64},
    "ds-fl": {"samples": 200, "epochs": 2, "batch": 50},
    "fed-et": {"samples": 256, "steps": 10, "batch": 64, "lr": 0.02},
}

# What becomes of a model. Methods that leave out blocks need several of them, so those nets get narrower rather than
# shallower, and the deep ones a pool behind their stem, which makes images a quarter as large.
_SMALL: dict[str, dict[str, Any]] = {
    "preresnet18": {"widths": _WIDTHS, "depths": [1, 1, 1, 1]},
    "preresnet18-paper": {"widths": _WIDTHS, "depths": [1, 1, 1, 1]},
    "resnet34": {"widths": [12, 24, 48, 96]},
    "resnet56": {"widths": [8, 16, 32], "depths": [5, 5, 5], "pool": True},
    "resnet110": {"widths": [8, 16, 32], "depths": [9, 9, 9], "pool": True},
    "wide-resnet101-2": {
        "widths": [8, 16, 32, 64],
        "depths": [2, 2, 4, 2],
        "stem_width": 16,
        "stem_kernel": 3,
        "stem_stride": 1,
    },
    "vgg16": {"widths": [[16, 16], [32, 32], [64] * 3, [128] * 3, [128] * 3]},
    "vit-b16": {"patch": 4, "width": 48, "depth": 4, "heads": 4},
    "transformer-mlm": {"width": 64, "hidden": 128, "depth": 2, "heads": 4},  # level e has one unit in every head
    "transformer-nwp": {"width": 64, "hidden": 256, "depth": 1, "heads": 4},
}


def laptop(experiment: Experiment) -> Experiment:
    """Return a small version of an experiment: same methods, levels and partition, so the same comparison.

    A fifth of the clients, 20 instead of 100, of which 5 or 10 take part; 5,000 training samples; 30 rounds of one
    or two epochs; narrower and shallower models, on images as they are stored. The learning rate falls to zero
    along a cosine: a run this short has no time for plateaus, nor to do without momentum. MNIST's starts at ten
    times the paper's for the same reason.

    >>> from nestling.experiment.presets import find
    >>> small = laptop(find("heterofl-cifar10-iid-a-e"))
    >>> small.name, small.rounds, small.fleet.levels
    ('heterofl-cifar10-iid-a-e-laptop', 30, 'a-e')
    """
    if experiment.data.name in TEXTS:
        return _text(experiment)
    local, fleet = experiment.local, _fewer(experiment.fleet, experiment.local.batch_size)
    rounds = 15 if fleet.per_round == fleet.clients else 30  # everybody's samples are twice as many
    return replace(
        experiment,
        name=f"{experiment.name}-laptop",
        rounds=rounds,
        options={**experiment.options, **_DISTILLATIONS.get(experiment.method, {})},
        model=_small(experiment.model),
        data=replace(experiment.data, max_samples=5000, resize=0),
        fleet=fleet,
        local=replace(
            local,
            lr=local.lr if local.schedule == "cosine" else 0.1,  # what has no plateaus can keep its own
            momentum=0.9,
            clip_norm=1,
            epochs=2 if experiment.data.name == "mnist" else 1,
            schedule="cosine",
            milestones=(),
            lr_decay=0.1,
        ),
        evaluate=Evaluate(
            every=(rounds + 1) // 2,
            samples=500 if experiment.method in _PRIVATE else 2000,
            norm_clients=min(5, fleet.clients),
            norm_batch=100,
            local=experiment.evaluate.local,
        ),
    )


def _text(experiment: Experiment) -> Experiment:
    """A small version of an experiment on words: the same vocabulary, and with masked words the clients' own alone.

    The learning rate starts at 0.1, HeteroFL's: FedRolex's authors use 2e-4, which needs thousands of rounds.
    Populations that are described lazily cost nothing, and keep their size; the 100 rows of WikiText-2 become 20.
    """
    rows = experiment.data.partition == "iid"
    fleet = replace(experiment.fleet, clients=20, per_round=5) if rows else replace(experiment.fleet, per_round=10)
    return replace(
        experiment,
        name=f"{experiment.name}-laptop",
        rounds=30,
        select_rows=rows,  # needs a masked loss, which FedRolex's language models do not have
        model=_small(experiment.model),
        data=replace(experiment.data, max_sequences=100 if rows else 64),
        fleet=fleet,
        local=replace(experiment.local, lr=0.1, batch_size=4, schedule="cosine", milestones=(), lr_decay=0.1),
        evaluate=replace(experiment.evaluate, every=15, samples=200 if rows else 1000),
    )


def _fewer(fleet: FleetSettings, batch: int) -> FleetSettings:
    """A fifth of the clients: a quarter of them take part, or half where large batches make samples cheaper."""
    if fleet.per_round == fleet.clients:
        return fleet
    clients = fleet.clients // 5
    return replace(fleet, clients=clients, per_round=clients // (2 if batch > 10 else 4))


def _small(model: Model) -> Model:
    return replace(model, options=deepcopy({**model.options, **_SMALL.get(model.name, {"widths": _WIDTHS})}))
