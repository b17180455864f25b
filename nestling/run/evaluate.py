"""Evaluation: the whole model, the sub-model of every level, and every client on its own share of the test set.

Global accuracy is that of the whole model on the test set. Local accuracy is over clients' shares of the test set, each
sample predicted among the classes that its client holds, averaged over samples. Where clients have models of their own
(private tensors), both are means over those models.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nestling.cut import Plan
from nestling.engines import Engine
from nestling.errors import RunError, TrainingError
from nestling.local.norms import averaged
from nestling.run.jobs import Gather, State, Test, TestOwn
from nestling.run.replies import replies
from nestling.run.server import Server
from nestling.run.setting import Setting
from nestling.run.slices import Handed, Slices
from nestling.seeds import numpy_stream

_CLIENTS = 8  # whose statistics one job asks for
_SAMPLES = 1000  # that one job tests


def evaluate(setting: Setting, server: Server, engine: Engine) -> tuple[dict[str, Any], dict[str, float]]:
    """Test the server's model; return the figures, and the local accuracy of every client."""
    if setting.private:
        return _own_models(setting, server, engine)
    plans = {name: setting.submodel(ratio, server.notes) for name, ratio in setting.levels.items()}
    plans = {name: plan for name, plan in plans.items() if plan.runs or plan.blocks is not None}
    whole = setting.whole(server.notes)
    given = {plan: dict(state) for plan, state in server.networks.values()} | server.given(setting, whole)
    states = ready(setting, server, engine, [whole, *plans.values()], given)
    logits = _logits(setting, engine, states, "test")
    targets = setting.dataset.test_targets[: len(logits[whole])]
    figures = _told(logits[whole], targets, "global_")
    if figures["global_loss"] is None:
        raise TrainingError(
            f"round {server.round}: the loss on the test set is no longer a number: try a smaller local.lr"
        )
    named = {name: plans.get(name, whole) for name in setting.levels}
    figures["submodels"] = {name: _told(logits[plan], targets) for name, plan in named.items()}
    _spread(figures)
    if server.networks:
        figures["networks"] = {name: _told(logits[plan], targets) for name, (plan, _) in server.networks.items()}
    figures["local_accuracy"], local = _local(setting, dict.fromkeys(range(len(setting.partition.test)), logits[whole]))
    if len(setting.validation):
        kept = setting.dataset.targets[setting.validation]
        held = _logits(setting, engine, {whole: states[whole]}, "validation")[whole]
        figures |= _told(held, kept, "validation_")
    return figures, local


def score(figures: Mapping[str, Any]) -> float:
    """What the best round is chosen by: accuracy on validation samples, where there are any, else on the test set."""
    value = figures.get("validation_accuracy", figures["global_accuracy"])
    return -1.0 if value is None else float(value)


def ready(
    setting: Setting, server: Server, engine: Engine, plans: Sequence[Plan], given: Mapping[Plan, State] | None = None
) -> dict[Plan, State]:
    """Return the sub-models of some plans, with statistics of their norms asked of clients, or as they are `given`."""
    plans = [plan for plan in dict.fromkeys(plans) if plan not in (given or {})]
    states = {plan: server.slice(setting, plan) for plan in plans}
    if not setting.statistics:
        return states | dict(given or {})
    asked, batch = _asked(setting, server.round), _batch(setting)
    jobs = [
        Gather(plan, shared, asked[at : at + _CLIENTS], batch)
        for plan, shared in _shared(engine, states).items()
        for at in range(0, len(asked), _CLIENTS)
    ]
    parts: dict[Plan, list[tuple[State, int]]] = {plan: [] for plan in states}
    for job, told in zip(jobs, _all(engine, jobs, _sizes(setting, jobs)), strict=True):
        parts[job.plan] += told
    for plan, state in states.items():
        for name, value in averaged(parts[plan]).items():
            state[name] = value.to(state[name].dtype)
    return states | dict(given or {})


def _asked(setting: Setting, round: int) -> tuple[int, ...]:
    """The clients asked for statistics."""
    clients, wanted = setting.fleet.clients, setting.experiment.evaluate.statistics_clients
    if not wanted or wanted >= clients:
        return tuple(range(clients))
    stream = numpy_stream(setting.experiment.seed, "statistics", round)
    return tuple(sorted(stream.choice(clients, wanted, replace=False).tolist()))


def _batch(setting: Setting) -> int:
    return setting.experiment.evaluate.statistics_batch or setting.experiment.local.batch


def _logits(setting: Setting, engine: Engine, states: Mapping[Plan, State], part: Any) -> dict[Plan, Tensor]:
    """What sub-models say of the test or validation samples: plan → (samples, classes)."""
    if part == "test":
        count = len(setting.dataset.test_targets)
        count = min(count, setting.experiment.evaluate.samples or count)
    else:
        count = len(setting.validation)
    cuts = [(start, min(count, start + _SAMPLES)) for start in range(0, count, _SAMPLES)]
    shared = _shared(engine, states)
    jobs = [Test(plan, state, part, start, stop) for plan, state in shared.items() for start, stop in cuts]
    said: dict[Plan, list[Tensor]] = {plan: [] for plan in states}
    for job, logits in zip(jobs, _all(engine, jobs, _sizes(setting, jobs)), strict=True):
        said[job.plan].append(logits)
    return {plan: torch.cat(parts) for plan, parts in said.items()}


def _shared(engine: Engine, states: Mapping[Plan, State]) -> dict[Plan, Any]:
    return {plan: engine.share(state) for plan, state in states.items()}


def _all(engine: Engine, jobs: Sequence[Any], sizes: Sequence[float] | None = None) -> list[Any]:
    """The replies to jobs of which none may be missing, the largest done first where sizes are given."""
    found = list(replies(engine, jobs, sizes))
    if len(found) < len(jobs):
        raise RunError(f"{len(jobs) - len(found)} parts of an evaluation are missing, as their workers died")
    return found


def _sizes(setting: Setting, jobs: Sequence[Any]) -> list[float]:
    return [float(setting.cost(job.plan).macs) for job in jobs]


def _told(logits: Tensor, targets: Tensor, prefix: str = "") -> dict[str, Any]:
    """Accuracy and loss; a loss that is no number is told as None."""
    loss = F.cross_entropy(logits.double(), targets).item()
    return {
        f"{prefix}accuracy": (logits.argmax(-1) == targets).double().mean().item(),
        f"{prefix}loss": loss if math.isfinite(loss) else None,
    }


def _spread(figures: dict[str, Any]) -> None:
    """Add the worst and the mean accuracy over sub-models."""
    found = [told["accuracy"] for told in figures["submodels"].values()]
    figures["worst_submodel"] = min(found)
    figures["mean_submodel"] = sum(found) / len(found)


def _local(setting: Setting, logits: Mapping[int, Tensor]) -> tuple[float | None, dict[str, float]]:
    """Accuracy on clients' own shares, each predicting among its classes: over all samples, and per client."""
    right, seen, local = 0, 0, {}
    for client, said in logits.items():
        share = setting.partition.test[client]
        share = share[share < len(said)]
        if len(share):
            labels = setting.partition.labels[client]
            among = said[share][:, labels].argmax(-1)
            hits = int((labels[among] == setting.dataset.test_targets[share]).sum())
            right, seen = right + hits, seen + len(share)
            local[str(client)] = hits / len(share)
    return (right / seen if seen else None), local


def _own_models(setting: Setting, server: Server, engine: Engine) -> tuple[dict[str, Any], dict[str, float]]:
    """Test the models that clients have to themselves; those that never took part have none yet."""
    clients = server.private.clients()
    levels = {client: setting.level(client, server.round) for client in clients}
    plans = {
        client: setting.method.plan(setting.turn(client, level.ratio, server.round, server.notes))
        for client, level in levels.items()
    }
    slices = Slices(engine, partial(server.slice, setting), plans.values())

    def job(index: int) -> TestOwn:
        client, plan = clients[index], plans[clients[index]]
        return TestOwn(client, plan, slices.get(plan), server.private.get(client), _batch(setting))

    logits = dict(zip(clients, _all(engine, Handed(len(clients), job)), strict=True))
    targets = setting.dataset.test_targets[: len(next(iter(logits.values())))]
    told = {client: _told(said, targets) for client, said in logits.items()}
    by_level: dict[str, list[dict[str, Any]]] = {}
    for client, level in levels.items():
        by_level.setdefault(level.name if setting.method.sized else "full", []).append(told[client])
    figures: dict[str, Any] = {
        f"global_{what}": _mean([one[what] for one in told.values()]) for what in ("accuracy", "loss")
    }
    figures["submodels"] = {
        name: {what: _mean([one[what] for one in by_level[name]]) for what in ("accuracy", "loss")}
        for name in setting.levels
        if name in by_level
    }
    _spread(figures)
    figures["local_accuracy"], local = _local(setting, logits)
    return figures, local


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
