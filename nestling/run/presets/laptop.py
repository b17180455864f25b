"""The same experiment, small enough for one core of a laptop: about a minute instead of days."""

from __future__ import annotations

from msgspec.structs import replace

from nestling.run.config import Evaluate, Experiment, Model

_WIDTHS = (16, 32, 64, 128)  # a quarter of the papers'; level e of the first is one channel (with GroupNorm, four)
_DEPTHS = (1, 1, 1, 1)  # blocks of a residual net
_PRIVATE = ("standalone", "lg-fedavg")  # every client tests a model of its own, so fewer samples must do


def laptop(experiment: Experiment) -> Experiment:
    """Return a small version of an experiment on images: same methods, levels and partition, so the same comparison.

    20 clients instead of 100, of which 5 take part; 5,000 training samples; 30 rounds of one or two epochs; narrower
    and shallower models. The learning rate falls to zero along a cosine: a run this short has no time for plateaus.
    MNIST's starts at ten times the paper's for the same reason.

    >>> from nestling.run.presets import find
    >>> small = laptop(find("heterofl-cifar10-iid-a-e"))
    >>> small.name, small.rounds, small.fleet.levels
    ('heterofl-cifar10-iid-a-e-laptop', 30, 'a-e')
    """
    rounds, mnist = 30, experiment.data.name == "mnist"
    return replace(
        experiment,
        name=f"{experiment.name}-laptop",
        rounds=rounds,
        model=_small(experiment.model),
        data=replace(experiment.data, samples=5000),
        fleet=replace(experiment.fleet, clients=20, per_round=5),
        local=replace(
            experiment.local, lr=0.1, epochs=2 if mnist else 1, batch=10, schedule="cosine", milestones=(), factor=0.1
        ),
        evaluate=Evaluate(
            every=rounds // 2,
            samples=500 if experiment.method in _PRIVATE else 2000,
            statistics_clients=5,
            statistics_batch=100,
        ),
    )


def _small(model: Model) -> Model:
    options = {**model.options, "widths": list(_WIDTHS)}
    if model.name.startswith("preresnet"):
        options["depths"] = list(_DEPTHS)
    return replace(model, options=options)
