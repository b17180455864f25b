"""Presets of FedRolex (Alam et al., NeurIPS 2022): all its experiments on images.

Names are METHOD-DATA-HETEROGENEITY-LEVELS, then what differs; heterogeneity is that of the data, ``high`` or ``low``.

The body of the paper gives neither learning rate nor rounds, so every preset follows one other source:

- The commands that the authors published: lr 2e-4, one epoch, 3,200 rounds on CIFAR-10 and 2,500 on CIFAR-100, levels
  drawn anew each round; weight decay 1e-3 and a factor of 0.25 at the milestone are those of their configuration file.
  These leave open momentum, clipping and batch size, which are HeteroFL's here (0.9, 1 and 10), and the milestone of
  CIFAR-100, which is that of CIFAR-10 (1,200).
- Presets named ``-heterofl-schedule``, of the rows of Table 3: rates, decay, epochs and rounds of HeteroFL's Table 6
  for CIFAR-10 with clients that are not IID, whose partition FedRolex takes over (Section 4). Levels are drawn anew
  each round, as in HeteroFL's tables.

``fleet.assign=fixed`` gives the reading of Section 3.1, where a capacity is that of client n.

Methods of knowledge distillation (FedDF, DS-FL, Fed-ET) are quoted in Table 3 from the paper of Fed-ET, with samples of
other data sets at the server. Here they train as all others in the table; the server's samples are a tenth of the
training set, 5,000, without labels, so clients hold a tenth less. Steps of the server and of distillations are those of
each method (`nestling.methods`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nestling.experiment.presets.mixes import server_and_levels
from nestling.experiment.presets.preset import Preset
from nestling.fleet.mix import FEDROLEX_REAL_WORLD, write_mix
from nestling.settings import Data, Evaluate, Experiment, FleetSettings, LocalTraining, Model

_CLASSES = {"cifar10": {"high": 2, "low": 5}, "cifar100": {"high": 20, "low": 50}}  # of a client (Section 4)
_ALL = "a-b-c-d-e"
_BESIDE = "its settings with a method"
SECOND_SCHEDULE = "heterofl-schedule"  # ends the names of presets with HeteroFL's schedule
_AUTHORS = "settings of the authors' commands, momentum, clipping and batch size of HeteroFL"
_HETEROFL = "settings of HeteroFL's Table 6"
_ROUNDS = {"cifar10": 3200, "cifar100": 2500}
DISTILLING = ("feddf", "ds-fl", "fed-et")  # methods with samples without labels at the server
_PUBLIC = 0.1  # the share of these in the training set
_WEIGHTINGS = ("samples", "width")  # two of the three of Appendix A.3, beside "none"
_STEPS = (2, 4, 8, 16)  # Appendix A.4, beside 1; the values are ours
_LARGER = {2: "b", 4: "c", 8: "d", 16: "e"}  # γ: how many times the clients' model the server's is, and their level


def presets() -> Iterator[Preset]:
    """Yield every experiment of the paper on images, in the order of its sections."""
    for data, heterogeneities in _CLASSES.items():
        for heterogeneity in heterogeneities:
            for method, mix, where, levels in fleets("Table 4, Figure 5"):
                yield _preset(method, data, heterogeneity, mix, where, levels=levels)
                if where.startswith(("Table 3", "Tables 3")):
                    yield _preset(method, data, heterogeneity, mix, where, heterofl_schedule=True)
            for method in DISTILLING:
                for second in (False, True):
                    yield _preset(method, data, heterogeneity, _ALL, "Table 3", heterofl_schedule=second)
            yield _preset("fjord", data, heterogeneity, _ALL, f"{_BESIDE} it could not repeat")
            yield _preset("fedprox", data, heterogeneity, "a", f"{_BESIDE} of Table 1")
            yield from _ablation(data, heterogeneity)


def fleets(real_world: str) -> Iterator[tuple[str, str, str, str]]:
    """Yield what is tried on every data set: method, what its mix is called, where, and levels that this leaves open.

    The paper shows devices of the real world elsewhere for every data set.
    """
    for method in ("heterofl", "fed-dropout", "fedrolex"):
        yield method, _ALL, "Table 3", ""
    for level in ("e", "a"):  # also the ends of Figure 3, ρ = 0 and 1
        yield "fedavg", level, "Tables 3 and 4, Figure 3", ""
    for tenths in range(1, 10):  # ρ, the share of clients that carry the whole model
        yield "fedrolex", f"a{tenths}-e{10 - tenths}", "Figure 3", ""
    for times, level in _LARGER.items():
        for method in ("fedrolex", "fed-dropout"):
            yield method, f"server-x{times}", "Figure 4", level
    yield "fedrolex", "real-world", real_world, write_mix(FEDROLEX_REAL_WORLD)


def _ablation(data: str, heterogeneity: str) -> Iterator[Preset]:
    """Yield other weightings of clients, and other steps of the window."""
    for weighting in _WEIGHTINGS:
        name, options = f"{_ALL}-weighting-{weighting}", {"weighting": weighting}
        yield _preset("fedrolex", data, heterogeneity, name, "Appendix A.3", levels=_ALL, options=options)
    for step in _STEPS:
        name = f"{_ALL}-step-{step}"
        yield _preset("fedrolex", data, heterogeneity, name, "Appendix A.4", levels=_ALL, options={"step": step})


def _preset(
    method: str,
    data: str,
    heterogeneity: str,
    mix: str,
    where: str,
    *,
    levels: str = "",
    options: dict[str, Any] | None = None,
    heterofl_schedule: bool = False,
) -> Preset:
    # where levels are given, the server keeps the whole model whoever the clients are
    width, own = (1.0, levels) if levels else server_and_levels(mix)
    experiment = Experiment(
        name="-".join([method, data, heterogeneity, mix, *([SECOND_SCHEDULE] if heterofl_schedule else [])]),
        method=method,
        # a homogeneous fleet is FedAvg with HeteroFL's masked loss, as in HeteroFL's tables
        options={"masked": True} if method in ("fedavg", "fedprox") else options or {},
        rounds=800 if heterofl_schedule else _ROUNDS[data],
        model=Model(name="preresnet18", width=width),
        data=Data(
            name=data,
            partition="classes",
            classes_per_client=_CLASSES[data][heterogeneity],
            public_share=_PUBLIC if method in DISTILLING else 0.0,
        ),
        fleet=FleetSettings(clients=100, per_round=10, levels=own, assign="dynamic"),
        local=_of_heterofl() if heterofl_schedule else _of_the_authors(),
        evaluate=Evaluate(every=10, submodels=method != "ds-fl"),  # it has a model for every client
    )
    source = _HETEROFL if heterofl_schedule else _AUTHORS + (", milestone of CIFAR-10" if data == "cifar100" else "")
    return Preset(experiment, f"FedRolex, {where}", source)


def _of_the_authors() -> LocalTraining:
    return LocalTraining(
        lr=2e-4,
        momentum=0.9,
        weight_decay=1e-3,
        clip_norm=1,
        epochs=1,
        batch_size=10,
        schedule="steps",
        milestones=(1200,),
        lr_decay=0.25,
    )


def _of_heterofl() -> LocalTraining:
    return LocalTraining(
        lr=0.1,
        momentum=0.9,
        weight_decay=5e-4,
        clip_norm=1,
        epochs=5,
        batch_size=10,
        schedule="steps",
        milestones=(300, 500),
        lr_decay=0.1,
    )
