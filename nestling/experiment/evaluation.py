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

from nestling.cut import Plan
from nestling.data import Lazy
from nestling.engines import Engine
from nestling.errors import TrainingError
from nestling.experiment.client_tensors import recall
from nestling.experiment.jobs import State, Test, TestClientModelJob
from nestling.experiment.norm_statistics import all_replies, ready, shared, sizes, statistics_batch
from nestling.experiment.server import Server
from nestling.experiment.setting import Setting
from nestling.experiment.slices import Slices
from nestling.tasks.task import Answer, Metric

__all__ = ["evaluate", "ready", "score"]


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
    task, test = setting.task, setting.data.test
    figures = _headed(task.measure(answers[whole], test))
    if figures["global_loss"] is None:
        raise TrainingError(
            f"round {server.round}: the loss on the test set is no longer a number: try a smaller local.lr"
        )
    named = {name: plans.get(name, whole) for name in setting.levels}
    figures["submodels"] = {name: task.measure(answers[plan], test) for name, plan in named.items()}
    _spread(figures, task.metrics[0])
    if server.networks:
        networks = server.networks.items()
        figures["networks"] = {name: task.measure(answers[plan], test) for name, (plan, _) in networks}
    local: dict[str, float] = {}
    if task.local_accuracy:
        local = _local(setting, figures, dict.fromkeys(range(len(setting.partition.test)), answers[whole]))
    if len(setting.validation):
        held = _answers(setting, engine, {whole: states[whole]}, "validation")[whole]
        measured = task.measure(held, setting.data.validation)
        figures |= {f"validation_{what}": value for what, value in measured.items()}
    return figures, local


def score(figures: Mapping[str, Any], metrics: Sequence[Metric]) -> float:
    """Return what the best round is chosen by: the first metric, the higher the better.

    It is that of the validation samples, where there are any, else of the test set.

    >>> from nestling.tasks import Classification, LanguageTask
    >>> score({"global_accuracy": 0.5}, Classification.metrics)
    0.5
    >>> score({"perplexity": 20.0, "validation_perplexity": 30.0}, LanguageTask("masked-word").metrics)
    -30.0
    """
    sign, what = (1 if metrics[0].better == "higher" else -1), metrics[0].name
    for name in (f"validation_{what}", f"global_{what}", what):
        if name in figures:
            return -math.inf if figures[name] is None else sign * float(figures[name])
    return -math.inf


def _answers(setting: Setting, engine: Engine, states: Mapping[Plan, State], part: Any) -> dict[Plan, Answer]:
    """What sub-models say of the test or validation samples."""
    count = len(setting.data.test if part == "test" else setting.data.validation)
    each = setting.task.test_chunk(count)
    cuts = [(start, min(count, start + each)) for start in range(0, count, each)]
    handed = shared(engine, states)
    jobs = [Test(plan, state, part, start, stop) for plan, state in handed.items() for start, stop in cuts]
    answers: dict[Plan, list[Answer]] = {plan: [] for plan in states}
    order = sizes(setting, jobs, [job.stop - job.start for job in jobs])
    for job, answer in zip(jobs, all_replies(engine, jobs, order), strict=True):
        answers[job.plan].append(answer)
    return {plan: setting.task.join(parts) for plan, parts in answers.items()}


def _headed(told: Mapping[str, Any]) -> dict[str, Any]:
    """Figures of the whole model, under the names by which they are known."""
    return {f"global_{what}" if what in ("accuracy", "loss") else what: value for what, value in told.items()}


def _spread(figures: dict[str, Any], metric: Metric) -> None:
    """Add the worst and the mean of a metric over sub-models."""
    values = [measured[metric.name] for measured in figures["submodels"].values()]
    known = [value for value in values if value is not None]
    worst = min if metric.better == "higher" else max
    figures["worst_submodel"] = worst(known) if known else None
    figures["mean_submodel"] = sum(known) / len(known) if known else None


def _local(setting: Setting, figures: dict[str, Any], answers: Mapping[int, Answer]) -> dict[str, float]:
    """Accuracy on clients' own shares, each predicting among its classes: over all samples, and per client."""
    right, seen, local = 0, 0, {}
    targets = setting.data.test.targets()
    for client, said in answers.items():
        share = setting.partition.test[client]
        share = share[share < len(said)]
        labels = setting.partition.labels[client]
        if len(share) and len(labels):  # a client without training samples has no classes to choose among
            among = said[share][:, labels].argmax(-1)
            hits = int((labels[among] == targets[share]).sum())
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

    def job(index: int) -> TestClientModelJob:
        client, plan = clients[index], plans[clients[index]]
        own = recall(setting.cut_axes, server.private, client, plan, server.state)
        return TestClientModelJob(client, plan, slices.get(plan), own, statistics_batch(setting))

    answers = dict(zip(clients, all_replies(engine, Lazy(len(clients), job, keep=0)), strict=True))
    task = setting.task
    measured = {client: task.measure(answer, setting.data.test) for client, answer in answers.items()}
    by_level: dict[str, list[dict[str, Any]]] = {}
    for client, level in levels.items():
        by_level.setdefault(level.name if setting.method.sized else "full", []).append(measured[client])
    unknown: dict[str, float | None] = {"loss": None, task.metrics[0].name: None}
    figures = _headed(_means(list(measured.values())) if measured else unknown)  # nobody has taken part yet
    figures["submodels"] = {name: _means(by_level[name]) for name in setting.levels if name in by_level}
    _spread(figures, task.metrics[0])
    return figures, _local(setting, figures, answers) if task.local_accuracy else {}


def _means(several: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    """The mean of every figure over those that have it."""
    means: dict[str, float | None] = {}
    for what in several[0]:
        known = [value for told in several if (value := told[what]) is not None]
        means[what] = sum(known) / len(known) if known else None
    return means
