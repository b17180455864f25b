"""Presets of FedMorph (anonymous submission): every row of Tables 1, 4, 5 and 6, and of Figures 11 and 12.

Names are METHOD-DATA-MODEL-PARTITION, then ``top25`` or ``top10`` where uploads are the largest quarter or tenth of the
change, ``unaugmented``, or ``v-…`` and ``lambda-…`` with another initial ratio or λ. All rows keep the same samples for
the server (a sixth of MNIST and EMNIST, a fifth of CIFAR-10, as many as the test set holds), whether the method uses
them or not, so that clients hold the same in all of them; the authors use the test set's own inputs instead
(`data.public_share=0 data.public_from_test=true`).

Where the paper leaves a choice
-------------------------------
- The paper says nothing of augmentation. Images of CIFAR-10 are cropped and flipped at the clients, because FedAvg's
  92.9 % on it are out of reach without; rows of whole uploads are there as they are stored, too (``unaugmented``). The
  server distils on images as they are stored.
- Gradients are not clipped: the paper does not mention it.
- Top-K has no error feedback (`upload.feedback=true` adds it).
- FedDropout is federated dropout without HeteroFL's Scaler and masked loss.
- On MNIST and EMNIST with clients of different kinds the local learning rate is 0.01, and everything else untouched
  (C.4): we read that as including the rate of the distillation, Table 3's 0.01.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any, Literal, NamedTuple

from msgspec.structs import replace

from nestling.experiment.presets.laptop import laptop
from nestling.experiment.presets.preset import Preset
from nestling.settings import Data, Evaluate, Experiment, FleetSettings, LocalTraining, Model
from nestling.upload import Upload


class _Task(NamedTuple):
    """A row of Table 3, and what B.2 says beside it."""

    data: str
    model: str
    rate: float
    penalty: float
    ratio: float
    pruned: float  # of FedDropout and FedPruned
    epochs: int
    rounds: int
    clients: int
    batch: int  # of the distillation
    unlabelled: float
    tables: tuple[str, str]  # IID and not


_TASKS = (
    _Task("mnist", "resnet8", 0.1, 1.6e-6, 0.1, 0.25, 1, 1500, 100, 50, 1 / 6, ("4", "5")),
    _Task("emnist-byclass", "resnet8", 0.1, 2e-5, 0.2, 0.35, 5, 3000, 5000, 500, 1 / 6, ("4", "5")),
    _Task("cifar10", "resnet18", 0.05, 1.2e-6, 0.3, 0.6, 1, 4000, 100, 50, 0.2, ("1", "6")),
    _Task("cifar10", "vgg16", 0.05, 1e-6, 0.3, 0.6, 1, 4000, 100, 50, 0.2, ("1", "6")),
)
_METHODS = {
    "iid": ("fedavg", "fed-dropout", "fedpruned", "fedmorph"),
    "dirichlet": ("fedavg", "fedprox", "fedmorph", "fedmorphprox"),
}
_MODELS: dict[str, dict[str, Any]] = {"resnet18": {"pool": False, "learn_steps": False}}
_AUGMENT: dict[str, Literal["none", "crop-flip"]] = {"mnist": "none", "emnist-byclass": "none", "cifar10": "crop-flip"}
_RATIOS, _PENALTIES = ("0.1", "0.2", "0.5", "0.7"), ("1.2e-7", "4e-7", "4e-6", "1.2e-5")  # besides those of Table 3
_UPLOADS = {"": Upload(), "top25": Upload(format="topk", fraction=0.25), "top10": Upload(format="topk", fraction=0.1)}


def presets() -> Iterator[Preset]:
    """Yield every experiment of the tables."""
    for task, (partition, methods) in product(_TASKS, _METHODS.items()):
        for method, top in product(methods, _UPLOADS):
            yield _preset(task, partition, method, top)
        if task.model == "resnet18" and partition == "iid":
            yield from _ablations(task)
        if _AUGMENT[task.data] != "none":
            for method in methods:
                yield _preset(task, partition, method, "", augmented=False)


def _ablations(task: _Task) -> Iterator[Preset]:
    """Yield FedMorph with other initial ratios and other λ; the text does not say which, so they are ours."""
    base = _preset(task, "iid", "fedmorph", "")()
    for option, name, values, figure in (("ratio", "v", _RATIOS, 11), ("penalty", "lambda", _PENALTIES, 12)):
        for text in values:
            options = {**base.options, option: float(text)}
            yield Preset(
                replace(base, name=f"{base.name}-{name}-{text}", options=options), f"FedMorph, Figure {figure}"
            )


def small(experiment: Experiment) -> Experiment:
    """Return a small version: 20 clients, a net a quarter as wide (and one block per stage), 60 rounds, six morphs.

    λ is sixteen times as large, because the net has a sixteenth of the parameters. Masks and the large network learn
    three times as fast and in five passes, because there are six morphs instead of 150. The first network keeps a third
    of the units, because a tenth of so narrow a net is single channels. The learning rate is constant, as in the paper.

    >>> from nestling.experiment.presets import find
    >>> find("fedmorph-mnist-resnet8-iid-laptop").options["ratio"]
    0.35
    """
    usual = laptop(experiment)
    options = dict(usual.options)
    if "morph" in usual.method:
        ratio = options["ratio"] if "-v-" in experiment.name else 0.35
        options |= {"ratio": ratio, "epochs": 5, "batch": 50, "distil_lr": 0.3, "mask_lr": 3.0}
        options["penalty"] *= 16
    model = usual.model
    if model.name == "resnet18":
        model = replace(model, options={**model.options, "depths": [1, 1, 1, 1]})
    passes = 1 if experiment.data.name == "cifar10" else 2
    return replace(
        usual,
        rounds=60,
        options=options,
        model=model,
        fleet=replace(usual.fleet, clients=20, per_round=4),
        local=replace(usual.local, lr=0.05, schedule="constant", clip_norm=0, batch_size=20, epochs=passes),
        evaluate=replace(usual.evaluate, every=10),
    )


def _preset(task: _Task, partition: str, method: str, top: str, *, augmented: bool = True) -> Preset:
    options: dict[str, Any] = {}
    mixed = partition != "iid"
    rate = 0.01 if mixed and "mnist" in task.data else task.rate
    if "morph" in method:
        options = {"ratio": task.ratio, "penalty": task.penalty, "batch": task.batch}
        if rate != task.rate:
            options["distil_lr"] = task.rate / 10 / rate  # a share of the local rate, which alone is lower
    elif method == "fedpruned":
        options = {"ratio": task.pruned}
    elif method == "fed-dropout":
        options = {"scaler": False, "masked": False}
    experiment = Experiment(
        name="-".join(
            filter(None, (method, task.data, task.model, partition, top, "" if augmented else "unaugmented"))
        ),
        method=method,
        options=options,
        rounds=task.rounds,
        model=Model(name=task.model, options=dict(_MODELS.get(task.model, {}))),
        data=Data(
            name=task.data,
            partition="dirichlet" if mixed else "iid",
            alpha=0.4,
            augment=_AUGMENT[task.data] if augmented else "none",
            public_share=task.unlabelled,
        ),
        fleet=FleetSettings(
            clients=task.clients, per_round=10, levels=str(task.pruned) if method == "fed-dropout" else "a"
        ),
        local=LocalTraining(
            lr=rate,
            momentum=0.9,
            weight_decay=5e-4,
            clip_norm=0,
            epochs=task.epochs,
            batch_size=100,
        ),
        upload=_UPLOADS[top],
        evaluate=Evaluate(every=10),
    )
    return Preset(experiment, f"FedMorph, Table {task.tables[mixed]}{'' if augmented else ', without augmentation'}")
