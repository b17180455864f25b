"""Presets of NeFL (Kang et al., 2023): every row of Tables 1 to 6 and 9, and the sub-models of Table 13.

Names are METHOD-DATA-PARTITION-MODEL, then what differs. METHOD is what the row says: ``nefl`` is the variant that the
paper chose for the model (B.1), ``nefl-w``, ``-d``, ``-do`` and ``-wd`` name it, and ``-nl`` holds step sizes fixed.
Rows of FjORD and DepthFL are there twice, as NeFL has versions of its own (B.3); descriptions say which a row is.
``fjord`` is FjORD as its authors describe it, ``fjord-nefl`` the table's row: NeFL-W with fixed steps. ``depthfl``
shares norms, as §5 says of the rows and as the authors' code does; ``depthfl-nefl`` has norms per sub-model, as B.3
says.
Tables are those of the preprint. The later version has the same experiments: its Table 1 those from scratch of Tables 1
and 2, its Table 2 the pre-trained ones, its Table 3 those of Table 3.

Where the paper leaves a choice
-------------------------------
- Five sub-models are drawn by tiers in all tables (B.5 says so of Table 1); three have fixed shares, 3, 3 and 4 of 10.
- Table 5 keeps the fraction of 0.1: 5 of 50 clients take part, and 2 of 20.
- §5 gives the recipe of Table 3 (10 clients, all of them in all 100 rounds, one epoch, cosine) for ViT and Wide ResNet
  alone. Its 500 steps of warm-up are three rounds. Momentum and a clipped gradient, of which it says nothing, are those
  of the authors' code: ViT has both, Wide ResNet none.
- Pre-trained ResNet18/34 (Tables 1, 2 and 6) have the clients, rounds and epochs of all ResNets. The paper gives a
  learning rate for ResNets from scratch and for Table 3, none for these: they get the rate and schedule from scratch.
- ViT-B/16 and Wide ResNet101_2 see images enlarged to 224×224, the size for which their weights were made; the paper
  does not say.
- The variant of Table 3 is NeFL-D, the only one that Table 15 lists, and the first in Table 13.
- Baselines have no step sizes. HeteroFL's loss is not masked (B.3), and FjORD does not distil, of which the paper says
  nothing.
- The crops and colours of SVHN (B.2) are left out: its images are as they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

from nestling.experiment.presets.preset import Preset
from nestling.fleet.levels import NEFL_FIVE, NEFL_SQUARES, NEFL_THREE, parse_level
from nestling.settings import Data, Evaluate, Experiment, FleetSettings, LocalTraining, Model

# γ, the shares of the parameters that sub-models have, and how many of ten clients have which (none: the same number)
_SIZES = {"five": (NEFL_FIVE, ()), "squares": (NEFL_SQUARES, ()), "three": (NEFL_THREE, (3, 3, 4))}
_CHOSEN = {"resnet18": "WD", "resnet34": "D", "vit-b16": "D", "wide-resnet101-2": "D"}  # "NeFL" without a letter
_BASELINES: dict[str, dict[str, Any]] = {
    "heterofl": {"masked": False},
    "fjord": {"distill": False},
    "fjord-nefl": {"variant": "nefl"},
    "depthfl": {"variant": "plain"},
    "depthfl-nefl": {"variant": "nefl"},
}
_VERSIONS = {
    "fjord": "FjORD as its authors describe it; the row is fjord-nefl",
    "fjord-nefl": "the row's FjORD, NeFL-W with fixed steps (B.3)",
    "depthfl": "the row's DepthFL by §5, with shared norms",
    "depthfl-nefl": "the row's DepthFL by B.3, with norms per sub-model",
}

_COMPARED = (*_BASELINES, "nefl")
_SCALED = (*_BASELINES, "nefl-w", "nefl-d", "nefl-wd")
_ABLATED = (*_SCALED, "nefl-do", "nefl-d-nl", "nefl-do-nl", "nefl-wd-nl")
_TWO = ("resnet18", "resnet34")
_LARGE = ("vit-b16", "wide-resnet101-2")


class _Rows(NamedTuple):
    """Rows of a table: all combinations of what is given."""

    table: str
    methods: tuple[str, ...]
    models: tuple[str, ...]
    partitions: tuple[str, ...] = ("iid",)
    data: tuple[str, ...] = ("cifar10",)
    clients: tuple[int, ...] = (100,)
    pretrained: tuple[bool, ...] = (False,)
    sizes: str = "five"


_TABLES = (
    _Rows("1", _COMPARED, _TWO, pretrained=(False, True)),
    _Rows("2", _COMPARED, _TWO, ("dirichlet",), pretrained=(False, True)),
    _Rows("3", ("nefl",), _LARGE, ("iid", "dirichlet"), pretrained=(True,), sizes="three"),
    _Rows("13", ("nefl-w",), ("vit-b16",), ("iid", "dirichlet"), pretrained=(True,), sizes="three"),
    _Rows("4", _COMPARED, _TWO, data=("cifar100", "cinic10", "svhn")),
    _Rows("5", _COMPARED, ("resnet18",), clients=(100, 50, 20)),
    _Rows("6", _ABLATED, _TWO, pretrained=(False, True)),
    _Rows("6", _ABLATED, ("resnet56", "resnet110")),
    _Rows("9", _SCALED, ("resnet110",), sizes="squares"),
)


def presets() -> Iterator[Preset]:
    """Yield every experiment of the paper once, in the order of the tables where they first stand."""
    experiments: dict[str, Experiment] = {}
    versions: dict[str, str] = {}
    tables: dict[str, list[str]] = {}
    for rows in _TABLES:
        for data, partition, clients, pretrained, model, method in product(
            rows.data, rows.partitions, rows.clients, rows.pretrained, rows.models, rows.methods
        ):
            experiment = _experiment(
                method, data, partition, model, clients=clients, pretrained=pretrained, sizes=rows.sizes
            )
            experiments[experiment.name] = experiment
            versions[experiment.name] = f": {_VERSIONS[method]}" if method in _VERSIONS else ""
            tables.setdefault(experiment.name, []).append(rows.table)
    for name, experiment in experiments.items():
        *others, last = tables[name]
        where = f"Tables {', '.join(others)} and {last}" if others else f"Table {last}"
        weights = ", with ImageNet's weights given as model.weights=FILE" if name.endswith("-pretrained") else ""
        yield Preset(experiment, f"NeFL, {where}{weights}{versions[name]}")


def _experiment(
    method: str, data: str, partition: str, model: str, *, clients: int, pretrained: bool, sizes: str
) -> Experiment:
    baseline = method in _BASELINES
    large = model in _LARGE
    rounds = 100 if large or data == "svhn" else 500
    words = {"squares": sizes == "squares", f"clients-{clients}": clients != 100, "pretrained": pretrained}
    if large:
        clients = 10
    return Experiment(
        name="-".join([method, data, partition, model, *(word for word, applies in words.items() if applies)]),
        method=method.removesuffix("-nefl") if baseline else "nefl",
        options=dict(_BASELINES[method]) if baseline else _options(method, model),
        rounds=rounds,
        model=Model(name=model, options={"learn_steps": not baseline}),
        data=Data(
            name=data,
            partition="dirichlet" if partition == "dirichlet" else "iid",
            alpha=0.5,
            resize=224 if large else 0,
        ),
        fleet=FleetSettings(
            clients=clients,
            per_round=clients if large else clients // 10,
            levels=_levels(sizes, widths=method in ("heterofl", "fjord", "fjord-nefl")),
            assign="fixed" if sizes == "three" else "tiers",
        ),
        local=_fine_tuning(model) if large else _from_scratch(rounds),
        evaluate=Evaluate(every=10, batch=50 if large else 500),  # large images take 49 times the memory
    )


def _options(method: str, model: str) -> dict[str, Any]:
    """NeFL's options, from a name such as ``nefl-do-nl``."""
    _, *words = method.split("-")
    fixed = "nl" in words
    return {"variant": words[0].upper() if words else _CHOSEN[model], "learn_steps": not fixed}


def _levels(sizes: str, *, widths: bool) -> str:
    """The levels of a fleet: shares of the parameters or, as `widths`, shares of the channels, which are their roots.

    Four digits give the channels of all models that the whole root gives.
    """
    gammas, shares = _SIZES[sizes]
    levels = [parse_level(round(math.sqrt(gamma.ratio), 4)) for gamma in gammas] if widths else gammas
    names = [level.name for level in levels]
    return ",".join(f"{name}:{share}" for name, share in zip(names, shares, strict=True)) if shares else "-".join(names)


def _from_scratch(rounds: int) -> LocalTraining:
    return LocalTraining(
        lr=0.1,
        momentum=0,
        weight_decay=0,
        clip_norm=0,
        epochs=5,
        batch_size=32,
        schedule="steps",
        milestones=(rounds // 2, rounds * 3 // 4),
        lr_decay=0.1,
    )


def _fine_tuning(model: str) -> LocalTraining:
    momentum, clip_norm = (0.9, 1.0) if model == "vit-b16" else (0.0, 0.0)
    return LocalTraining(
        lr=0.03,
        momentum=momentum,
        weight_decay=0,
        clip_norm=clip_norm,
        epochs=1,
        batch_size=32,
        schedule="cosine",
        warmup_rounds=3,
    )
