"""What experiments cost, without their data and without training: levels exactly, and whole runs as an estimate.

Measuring a deep net takes seconds, so the costs of all whole models of the reproductions are in ``model_costs.json``; a
model that is not there is measured. ``python -m nestling.experiment.reproductions.expected_cost`` writes the file.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

import torch
from torch import nn

from nestling.axes import AxisMap, trace
from nestling.cut import plan, submodel
from nestling.data.batches import local_samples, local_steps
from nestling.errors import ConfigError
from nestling.experiment.presets import PRESETS
from nestling.experiment.reproductions.definitions import SCALES, presets_of, reproductions
from nestling.fleet import TRAINING, parse_mix
from nestling.fleet.fleet import TIER_REACH
from nestling.methods import Setup, make
from nestling.methods.context import PublicWork
from nestling.methods.parts.private import Private
from nestling.methods.standalone import every_tensor
from nestling.nets import MODELS, build, example
from nestling.server.cost_meter import CostMeter
from nestling.settings import Experiment
from nestling.tasks import Classification

# The data sets of the papers: shape of a sample, training samples, classes.
IMAGES = {
    "digits": ((1, 8, 8), 1438, 10),
    "mnist": ((1, 28, 28), 60_000, 10),
    "emnist-byclass": ((1, 28, 28), 697_932, 62),
    "cifar10": ((3, 32, 32), 50_000, 10),
    "cifar100": ((3, 32, 32), 50_000, 100),
    "cinic10": ((3, 32, 32), 90_000, 10),
    "svhn": ((3, 32, 32), 73_257, 10),
}
# Sequences of all clients: WikiText-2's words in windows of 64 (HeteroFL, Table 6); FedRolex, Table 2.
_SEQUENCES = {"wikitext2": 2_088_628 // 64, "stackoverflow": 135_818_730}
_BY_USER = {"words": 10}  # sequences of a user on average, however many users take part

_STEP_SECONDS, _MACS_PER_SECOND = 5e-4, 5e10  # of a step of SGD on one core: a constant, and its arithmetic
_FILE = "model_costs.json"
_SHARES_OF_PARAMETERS = ("nefl", "depthfl")  # methods whose levels are not widths
_levels: dict[str, tuple[int, int]] = {}  # measured in this process


@dataclass(frozen=True)
class LevelCost:
    """A level: its share of the clients in a round, its parameters, and the MACs of one sample forward."""

    share: float
    parameters: int
    macs: int


@dataclass(frozen=True)
class RunCost:
    """About what all clients of a run compute, in how many steps, and what they exchange without compression."""

    client_macs: float
    bytes: float
    steps: float

    @property
    def hours(self) -> float:
        """About how long one core of today takes, without tests of the model; that depends much on the machine."""
        return (self.steps * _STEP_SECONDS + self.client_macs / _MACS_PER_SECOND) / 3600


def level_costs(experiment: Experiment) -> tuple[LevelCost, ...]:
    """Return the levels of an experiment's fleet; one, if all clients train the same slice.

    >>> from nestling.experiment.presets import find
    >>> [level.parameters for level in level_costs(find("heterofl-mnist-iid-a-e"))]
    [1556874, 6594]
    """
    shares = _shares(experiment)
    keys = {ratio: json.dumps([_key(experiment), repr(_plan_of(experiment)), ratio]) for ratio in shares}
    if any(key not in _levels for key in keys.values()):
        setup = _setup(experiment)
        meter = CostMeter(setup)
        for ratio, key in keys.items():
            measured = meter.cost(setup.submodel_plan(ratio))
            _levels[key] = measured.parameters, measured.macs // setup.training.batch_size
    return tuple(LevelCost(share, *_levels[keys[ratio]]) for ratio, share in shares.items())


def run_cost(experiment: Experiment) -> RunCost:
    """Return about what the clients of a run compute and exchange.

    Clients count as holding the same number of samples, and a level of width r as r² of the whole model, which is
    a little too low for small ones; sub-models of NeFL and DepthFL count as their share of the parameters. What clients
    compute and send for unlabelled samples (DS-FL) counts without the statistics of norms.

    >>> from nestling.experiment.presets import find
    >>> round(run_cost(find("fedavg-mnist-iid-a")).client_macs / 1e15, 2)
    0.72
    """
    whole = experiment.model.width**2
    linear = experiment.method in _SHARES_OF_PARAMETERS
    size = sum(share * (ratio if linear else ratio**2) for ratio, share in _shares(experiment).items())
    one_slice = getattr(_plan_of(experiment), "ratio", None)  # that of FedPruned, and FedMorph's first
    size *= whole * (1.0 if one_slice is None else one_slice**2)
    parameters, macs = whole_model(experiment)
    fleet, buffer = experiment.fleet, experiment.server.buffer
    jobs = math.ceil(experiment.rounds * (buffer or fleet.per_round * fleet.over_selection))
    samples, local = samples_per_client(experiment), experiment.local
    whole_samples = max(1, round(samples))
    trained = local_samples(local, whole_samples) if local.steps else local.epochs * samples
    steps = jobs * local_steps(local, whole_samples)
    work = _public_work(experiment)
    passes = (trained + work.trained) * TRAINING + work.predicted
    sent = 0.0 if _keeps_all(experiment) else size * parameters * 4
    return RunCost(jobs * passes * size * macs, 2 * jobs * (sent + work.bytes_up), steps)


def samples_per_client(experiment: Experiment) -> float:
    """Return the samples, or sequences, that a client has on the average.

    >>> samples_per_client(Experiment().with_settings(["data.name=mnist"]))
    600.0
    """
    data, clients = experiment.data, experiment.fleet.clients
    if data.name in _SEQUENCES:
        return min(data.max_sequences or math.inf, _SEQUENCES[data.name] / clients)
    if data.name in _BY_USER:
        return min(data.max_sequences or math.inf, _BY_USER[data.name])
    if data.name not in IMAGES:
        known = ", ".join((*IMAGES, *_SEQUENCES, *_BY_USER))
        raise ConfigError(f"reproductions know what {known} cost, not {data.name!r}: leave out data.name")
    kept = data.max_samples or IMAGES[data.name][1]
    return kept * (1 - data.validation - data.public_share) / clients


def _public_work(experiment: Experiment) -> PublicWork:
    """Return what a client does with unlabelled samples in a round."""
    method, data = make(experiment.method, experiment.options), experiment.data
    if data.name not in IMAGES:
        return PublicWork()
    _, samples, classes = IMAGES[data.name]
    setup = Setup(nn.Module(), AxisMap({}, {}, {}, {}), torch.zeros(2, 1), Classification(classes), method)
    return method.public_work(setup, range(int((data.max_samples or samples) * data.public_share)))


def _keeps_all(experiment: Experiment) -> bool:
    """Return whether clients keep all tensors to themselves."""
    parts = make(experiment.method, experiment.options).parts
    return any(isinstance(part, Private) and part.names is every_tensor for part in parts)


def _plan_of(experiment: Experiment) -> object:
    return make(experiment.method, experiment.options).plan


def _shares(experiment: Experiment) -> dict[float, float]:
    """Return the levels that clients train in a round: ratio → share of clients, the largest first.

    With NeFL's tiers (B.5), a client draws among the levels up to two below and above its own.
    """
    if not make(experiment.method, experiment.options).plan.by_level:
        return {1.0: 1.0}
    mix = sorted(parse_mix(experiment.fleet.levels), key=lambda pair: pair[0].ratio)
    shares = dict.fromkeys((level.ratio for level, _ in reversed(mix)), 0.0)
    for place, (level, share) in enumerate(mix):
        tiers = experiment.fleet.assign == "tiers"
        near = mix[max(place - TIER_REACH, 0) : place + TIER_REACH + 1] if tiers else [(level, share)]
        for other, _ in near:
            shares[other.ratio] += share / len(near)
    return shares


def _key(experiment: Experiment, whole: bool = False) -> str:
    model, data = experiment.model, experiment.data
    width = 1.0 if whole else model.width
    words = {"vocabulary": data.vocabulary_size} if data.vocabulary_size else {}
    return json.dumps([model.name, words | model.options, width, data.name, data.resize], sort_keys=True)


def whole_model(experiment: Experiment) -> tuple[int, int]:
    """Return the parameters and MACs of the model at its whole width, from the file or measured.

    >>> from nestling.experiment.presets import find
    >>> whole_model(find("fedavg-mnist-iid-e"))[0]
    1556874
    """
    known, key = _known(), _key(experiment, whole=True)
    if key not in known:
        plain = experiment.with_settings(["method=fedavg", "model.width=1.0"])
        (level,) = level_costs(plain)
        known[key] = [level.parameters, level.macs]
    parameters, macs = known[key]
    return parameters, macs


@cache
def _known() -> dict[str, list[int]]:
    known: dict[str, list[int]] = json.loads((resources.files(__package__) / _FILE).read_text(encoding="utf-8"))
    return known


def _setup(experiment: Experiment) -> Setup:
    """Return the setup of an experiment around a model without values."""
    settings, data = experiment.model, experiment.data
    options = dict(settings.options)
    if data.name in IMAGES:
        (channels, size, _), _, classes = IMAGES[data.name]
        known = {"classes": classes, "channels": channels, "size": data.resize or size}
        options = {**{key: value for key, value in known.items() if key in MODELS[settings.name].options}, **options}
        inputs = torch.zeros(2, channels, data.resize or size, data.resize or size)
    else:
        if data.vocabulary_size:
            options = {"vocabulary": data.vocabulary_size, **options}
        inputs = example(settings.name, batch=2, **options)[0]
    with torch.device("meta"):
        model = build(settings.name, **options)
    axes = trace(model, inputs)
    if settings.width < 1:
        model = submodel(model, axes, plan(axes, settings.width))
        axes = trace(model, inputs)
    ratios = tuple(sorted(level.ratio for level, _ in parse_mix(experiment.fleet.levels)))
    method = make(experiment.method, experiment.options)
    task = Classification(options.get("classes", 10))
    return Setup(model, axes, inputs, task, method, ratios=ratios, rounds=experiment.rounds)


def _write_all() -> None:
    """Write the costs of the whole models of all reproductions to the file."""
    path = Path(__file__).with_name(_FILE)
    names = {
        name: None
        for reproduction in reproductions()
        for row in reproduction.rows
        for scale in SCALES
        for name in presets_of(row, scale).values()
    }
    costs: dict[str, tuple[int, int]] = {}
    for name in names:
        experiment = PRESETS[name]()
        if _key(experiment, whole=True) not in costs:
            costs[_key(experiment, whole=True)] = whole_model(experiment)
            lines = [f"{json.dumps(key)}: {json.dumps(cost)}" for key, cost in sorted(costs.items())]
            path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    _write_all()
