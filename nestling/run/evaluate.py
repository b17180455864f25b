"""Evaluation: the whole model, the sub-model of every level, and every client on its own share of the test set.

Global accuracy is that of the whole model on the test set. Local accuracy is over clients' shares of the test set, each
sample predicted among the classes that its client holds, averaged over samples. Where clients have models of their own
(private tensors), both are means over those models. Of language models, sums over positions are told instead of logits,
which would be far too many, and there is no local accuracy; `nestling.tasks.language` says which figures they give.
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
from nestling.data import Lazy
from nestling.engines import Engine
from nestling.errors import TrainingError
from nestling.run.jobs import State, Test, TestOwn
from nestling.run.ready import all_replies, ready, shared, sizes, statistics_batch
from nestling.run.server import Server
from nestling.run.setting import Setting
from nestling.run.slices import Slices
from nestling.tasks.language import Sums, added

__all__ = ["evaluate", "ready", "score"]

_SAMPLES = 1000  # that one job tests, at most; fewer where there are few, so that several workers have something to do
_JOBS = 8  # that there are at least, if that leaves each a tenth of that
_SEQUENCES = 250  # of words that one job tests; which of them are masked depends on it

Answer = Tensor | Sums  # logits (samples, classes), or what is counted of words


def evaluate(setting: Setting, server: Server, engine: Engine) -> tuple[dict[str, Any], dict[str, float]]:
    """Test the server's model; return the figures, and the local accuracy of every client."""
    if setting.private:
        return _own_models(setting, server, engine)
    plans = {name: setting.submodel(ratio, server.notes) for name, ratio in setting.levels.items()}
    plans = {name: plan for name, plan in plans.items() if plan.runs or plan.blocks is not None}
    whole = setting.whole(server.notes)
    given = {plan: dict(state) for plan, state in server.networks.values()} | server.given(setting, whole)
    states = ready(setting, server, engine, [whole, *plans.values()], given)
    answers = _answers(setting, engine, states, "test")
    figures = _headed(_told(setting, answers[whole], "test"))
    if figures["global_loss"] is None:
        raise TrainingError(
            f"round {server.round}: the loss on the test set is no longer a number: try a smaller local.lr"
        )
    named = {name: plans.get(name, whole) for name in setting.levels}
    figures["submodels"] = {name: _told(setting, answers[plan], "test") for name, plan in named.items()}
    _spread(figures)
    if server.networks:
        told = {name: _told(setting, answers[plan], "test") for name, (plan, _) in server.networks.items()}
        figures["networks"] = told
    local: dict[str, float] = {}
    if setting.words is None:  # of words nothing is asked of all clients, who may be hundreds of thousands
        local = _local(setting, figures, dict.fromkeys(range(len(setting.partition.test)), answers[whole]))
    if len(setting.validation):
        held = _answers(setting, engine, {whole: states[whole]}, "validation")[whole]
        figures |= {f"validation_{what}": value for what, value in _told(setting, held, "validation").items()}
    return figures, local


def score(figures: Mapping[str, Any]) -> float:
    """What the best round is chosen by: on validation samples, where there are any, else on the test set.

    The highest accuracy is the best, or the lowest perplexity where there is no accuracy.

    >>> score({"global_accuracy": 0.5}), score({"perplexity": 20.0, "validation_perplexity": 30.0})
    (0.5, -30.0)
    """
    for measure, sign in (("accuracy", 1), ("perplexity", -1)):
        for name in (f"validation_{measure}", f"global_{measure}", measure):
            if name in figures:
                return -math.inf if figures[name] is None else sign * float(figures[name])
    return -math.inf


def _answers(setting: Setting, engine: Engine, states: Mapping[Plan, State], part: Any) -> dict[Plan, Answer]:
    """What sub-models say of the test or validation samples."""
    count = setting.tested(part)
    each = _SEQUENCES if setting.words is not None else min(_SAMPLES, max(_SAMPLES // 10, math.ceil(count / _JOBS)))
    cuts = [(start, min(count, start + each)) for start in range(0, count, each)]
    handed = shared(engine, states)
    jobs = [Test(plan, state, part, start, stop) for plan, state in handed.items() for start, stop in cuts]
    said: dict[Plan, list[Any]] = {plan: [] for plan in states}
    order = sizes(setting, jobs, [job.stop - job.start for job in jobs])
    for job, answer in zip(jobs, all_replies(engine, jobs, order), strict=True):
        said[job.plan].append(answer)
    return {plan: torch.cat(parts) if setting.words is None else added(parts) for plan, parts in said.items()}


def _told(setting: Setting, answer: Answer, part: str) -> dict[str, Any]:
    """The figures of an answer; a loss that is no number is told as None."""
    if not isinstance(answer, Tensor):
        assert setting.words is not None
        return setting.words.told(answer)
    dataset = setting.images
    targets = dataset.test_targets[: len(answer)] if part == "test" else dataset.targets[setting.validation]
    loss = F.cross_entropy(answer.double(), targets).item()
    return {
        "accuracy": (answer.argmax(-1) == targets).double().mean().item(),
        "loss": loss if math.isfinite(loss) else None,
    }


def _headed(told: Mapping[str, Any]) -> dict[str, Any]:
    """Figures of the whole model, under the names by which they are known."""
    return {f"global_{what}" if what in ("accuracy", "loss") else what: value for what, value in told.items()}


def _spread(figures: dict[str, Any]) -> None:
    """Add the worst and the mean accuracy over sub-models, or perplexity where there is no accuracy."""
    measured = list(figures["submodels"].values())
    what = "accuracy" if measured and "accuracy" in measured[0] else "perplexity"
    found = [told[what] for told in measured if told[what] is not None]
    worst = min if what == "accuracy" else max
    figures["worst_submodel"] = worst(found) if found else None
    figures["mean_submodel"] = sum(found) / len(found) if found else None


def _local(setting: Setting, figures: dict[str, Any], answers: Mapping[int, Answer]) -> dict[str, float]:
    """Accuracy on clients' own shares, each predicting among its classes: over all samples, and per client."""
    right, seen, local = 0, 0, {}
    for client, said in answers.items():
        assert isinstance(said, Tensor)
        share = setting.partition.test[client]
        share = share[share < len(said)]
        labels = setting.partition.labels[client]
        if len(share) and len(labels):  # a client without training samples has no classes to choose among
            among = said[share][:, labels].argmax(-1)
            hits = int((labels[among] == setting.images.test_targets[share]).sum())
            right, seen = right + hits, seen + len(share)
            local[str(client)] = hits / len(share)
    figures["local_accuracy"] = right / seen if seen else None
    return local


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
        return TestOwn(client, plan, slices.get(plan), server.private.get(client), statistics_batch(setting))

    answers = dict(zip(clients, all_replies(engine, Lazy(len(clients), job, keep=0)), strict=True))
    told = {client: _told(setting, said, "test") for client, said in answers.items()}
    by_level: dict[str, list[dict[str, Any]]] = {}
    for client, level in levels.items():
        by_level.setdefault(level.name if setting.method.sized else "full", []).append(told[client])
    unknown: dict[str, float | None] = {"loss": None, "accuracy" if setting.words is None else "perplexity": None}
    figures = _headed(_means(list(told.values())) if told else unknown)  # nobody has taken part yet
    figures["submodels"] = {name: _means(by_level[name]) for name in setting.levels if name in by_level}
    _spread(figures)
    return figures, _local(setting, figures, answers) if setting.words is None else {}


def _means(several: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    """The mean of every figure over those that have it."""
    means: dict[str, float | None] = {}
    for what in several[0]:
        known = [value for told in several if (value := told[what]) is not None]
        means[what] = sum(known) / len(known) if known else None
    return means
