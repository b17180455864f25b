"""Planted attackers: what each merge withstands, with three hostile clients among fifteen of two sizes.

python attackers.py
"""

from dataclasses import dataclass, replace
from typing import Any

import nestling
from nestling.data import load, partition
from nestling.experiment import find
from nestling.fleet import Fleet, parse_mix
from nestling.methods import Part, RoundContext, make
from nestling.methods.aggregator import Mean
from nestling.methods.messages import Update

RULES = ("mean", "clip-norm:1.0", "trimmed-mean:0.3", "median", "krum:2", "multi-krum:2")
ATTACKS = {"none": 1.0, "sign flip": -5.0, "scaled update": 50.0, "label flip": 1.0}  # factors of an attacker's change
FLEET = Fleet(clients=15, per_round=15, mix=parse_mix("a-c"))
LEVELS = {name: [k for k in range(15) if FLEET.level(k, 1).name == name] for name in "ac"}
ATTACKERS = (*LEVELS["a"][:2], LEVELS["c"][0])


class Tampered:
    """An aggregator to which the attackers send their changes times a factor."""

    def __init__(self, inner: Any, mean: Mean, factor: float) -> None:
        self._inner, self._mean, self._factor = inner, mean, factor

    def add(self, update: Update, weight: float) -> None:
        """Add an update, tampered with if it comes from an attacker."""
        if update.who[0].client in ATTACKERS:
            sent = self._mean.sent(update.plan)
            state = {
                name: sent[name] + self._factor * (tensor - sent[name]) if tensor.is_floating_point() else tensor
                for name, tensor in update.state.items()
            }
            update = replace(update, state=state)
        self._inner.add(update, weight)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@dataclass(frozen=True)
class Planted(Part):
    """A rule in front of which attackers are planted; a plain part is the mean."""

    rule: Part
    factor: float

    def aggregator(self, round: RoundContext, mean: Mean) -> Tampered:
        """Return the rule's merge, tampered with."""
        return Tampered(self.rule.aggregator(round, mean), mean, self.factor)


def accuracy(rule: str, attack: str, rounds: int = 10) -> float:
    """Return the accuracy of the global model after some rounds."""
    data = load("digits")
    shares = partition(data, 15)
    if attack == "label flip":
        targets = data.targets.clone()
        for client in ATTACKERS:
            targets[shares.train[client]] = 9 - targets[shares.train[client]]
        data = replace(data, targets=targets)
    plain = make("heterofl", {"masked": False})
    part = Part() if rule == "mean" else make("heterofl", {"masked": False}, rule).parts[-1]
    method = plain.with_parts(Planted(part, ATTACKS[attack]))
    settings = ["fleet.clients=15", "fleet.per_round=15", "fleet.levels=a-c", f"rounds={rounds}", "local.epochs=2"]
    settings += [f"evaluate.every={rounds}", "evaluate.submodels=false", "model.options.widths=[16, 32, 32]"]
    experiment = find("heterofl-digits").with_settings(settings)
    result = nestling.run(experiment, method=method, dataset=data, partition=shares)
    return result.summary["final"]["global_accuracy"]


if __name__ == "__main__":
    print(f"{'':18}" + "".join(f"{attack:>15}" for attack in ATTACKS))
    for rule in RULES:
        print(f"{rule:18}" + "".join(f"{accuracy(rule, attack):15.1%}" for attack in ATTACKS), flush=True)
