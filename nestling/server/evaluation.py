"""Evaluation: the global model, the sub-model of every level, and every client on its own share of the test set.

Global accuracy is that of the global model on the test set. Local accuracy is over clients' shares of the test set,
each sample predicted among the classes that its client holds, averaged over samples; `Evaluate.local` chooses another
definition. Where clients have models of their own (private tensors), both are means over those models; if the server
has a model, too (DS-FL), global accuracy is that of the server's, and all figures are if `Evaluate.submodels` is off.
Which other figures there are is up to the task (`nestling.tasks`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from nestling.cut import Plan
from nestling.cut.extract import State
from nestling.data.federated import FederatedData
from nestling.errors import TrainingError
from nestling.methods.context import Participant, Setup
from nestling.methods.messages import TestClientModelJob, TestJob, TestOwnDataJob
from nestling.server.client_pool import ClientPool
from nestling.server.norm_statistics import norm_batch, with_norm_statistics
from nestling.server.state import ServerState
from nestling.settings import Evaluate
from nestling.tasks.task import Answer, Metric

# the figures that are of the clients' own models, where they have some, even if the server has a model
_OF_OWN_MODELS = ("submodels", "worst_submodel", "mean_submodel", "local_accuracy")


def evaluate(
    setup: Setup,
    state: ServerState,
    clients: ClientPool,
    data: FederatedData,
    *,
    levels: Mapping[str, float],
    settings: Evaluate,
    own_models: Sequence[Participant] = (),
    on_models: Callable[[Mapping[Plan, State]], None] | None = None,
) -> tuple[dict[str, Any], dict[str, float]]:
    """Test the models of a state; return the figures, and the local accuracy of every client.

    Parameters
    ----------
    setup, state
        The experiment, and the state to test.
    clients, data
        The clients, which run the tests, and the samples.
    levels
        The levels whose sub-models are tested: name → ratio.
    settings
        The settings of evaluations.
    own_models
        The clients that have a model of their own, if the method has private tensors.
    on_models
        Called with the models that are tested, norm statistics included, unless clients have models of their own.
    """
    server_alone = not settings.submodels and bool(state.separate_global_model(setup))
    if setup.private and not server_alone:
        own_answers = _ask_own_models(setup, state, clients, own_models, settings)
        own_models = [who for who in own_models if who.client in own_answers]
        masked = settings.local == "masked"
        own, local = _measure_own_models(setup, data, own_models, own_answers, levels, masked=masked)
        if state.separate_global_model(setup):  # DS-FL's server has a model, too
            of_server, _ = _measure_global(
                setup, state, clients, data, levels={}, settings=settings, on_models=on_models
            )
            own |= {name: value for name, value in of_server.items() if name not in _OF_OWN_MODELS}
        return own, local
    return _measure_global(setup, state, clients, data, levels=levels, settings=settings, on_models=on_models)


def _measure_global(
    setup: Setup,
    state: ServerState,
    clients: ClientPool,
    data: FederatedData,
    *,
    levels: Mapping[str, float],
    settings: Evaluate,
    on_models: Callable[[Mapping[Plan, State]], None] | None,
) -> tuple[dict[str, Any], dict[str, float]]:
    """Test the global model and those cut out of it; return the figures, and the local accuracy of every client."""
    plans = {name: setup.submodel_plan(ratio, state.method_state) for name, ratio in levels.items()}
    plans = {name: plan for name, plan in plans.items() if plan.runs or plan.blocks is not None}
    whole = setup.global_plan(state.method_state)
    complete = {plan: dict(weights) for plan, weights in state.networks.values()} | state.separate_global_model(setup)
    states = with_norm_statistics(
        setup, state, clients, data, settings=settings, plans=[whole, *plans.values()], complete=complete
    )
    if on_models is not None:
        on_models(states)

    def answers_on(part: Literal["test", "validation"], models: Mapping[Plan, State]) -> dict[Plan, Answer]:
        count = len(data.test if part == "test" else data.validation)
        chunk = setup.task.test_chunk(count)
        ranges = [(start, min(count, start + chunk)) for start in range(0, count, chunk)]
        jobs = [TestJob(plan, part, start, stop, settings.batch) for plan in models for start, stop in ranges]
        answers: dict[Plan, list[Answer]] = {plan: [] for plan in models}
        for job, answer in zip(jobs, clients.ask(jobs, models.__getitem__, state), strict=True):
            answers[job.plan].append(answer)
        return {plan: setup.task.join(parts) for plan, parts in answers.items()}

    answers = answers_on("test", states)
    task, test = setup.task, data.test
    figures = _with_global_names(task.measure(answers[whole], test))
    if figures["global_loss"] is None:
        raise TrainingError(
            f"round {state.round}: the loss on the test set is no longer a number: try a smaller local.lr"
        )
    named = {name: plans.get(name, whole) for name in levels}
    figures["submodels"] = {name: task.measure(answers[plan], test) for name, plan in named.items()}
    _add_worst_and_mean(figures, task.metrics[0])
    if state.networks:
        networks = state.networks.items()
        figures["networks"] = {name: task.measure(answers[plan], test) for name, (plan, _) in networks}
    local: dict[str, float] = {}
    if task.local_accuracy and settings.local == "own-data":
        local = _add_own_data_accuracy(data, figures, clients, whole, states, state=state, batch=settings.batch)
    elif task.local_accuracy:
        tested = range(len(data)) if getattr(data, "has_test_shares", True) else ()  # data of one's own may not say
        same = dict.fromkeys(tested, answers[whole])
        local = _add_local_accuracy(data, figures, same, masked=settings.local == "masked")
    if len(data.validation):
        answer = answers_on("validation", {whole: states[whole]})[whole]
        measured = task.measure(answer, data.validation)
        figures |= {f"validation_{name}": value for name, value in measured.items()}
    return figures, local


def score(figures: Mapping[str, Any], metrics: Sequence[Metric]) -> float:
    """Return the score by which the best round is chosen: the first metric, negated if lower is better.

    It is measured on the validation samples if there are any, else on the test set.

    >>> from nestling.tasks import Classification, LanguageTask
    >>> score({"global_accuracy": 0.5}, Classification(10).metrics)
    0.5
    >>> score({"perplexity": 20.0, "validation_perplexity": 30.0}, LanguageTask("masked-word").metrics)
    -30.0
    """
    sign, metric = (1 if metrics[0].better == "higher" else -1), metrics[0].name
    for name in (f"validation_{metric}", f"global_{metric}", metric):
        if name in figures:
            return -math.inf if figures[name] is None else sign * float(figures[name])
    return -math.inf


def _with_global_names(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of the global model under the names that records use."""
    return {f"global_{name}" if name in ("accuracy", "loss") else name: value for name, value in figures.items()}


def _add_worst_and_mean(figures: dict[str, Any], metric: Metric) -> None:
    """Add the worst and the mean of a metric over sub-models."""
    values = [measured[metric.name] for measured in figures["submodels"].values()]
    known = [value for value in values if value is not None]
    worst = min if metric.better == "higher" else max
    figures["worst_submodel"] = worst(known) if known else None
    figures["mean_submodel"] = sum(known) / len(known) if known else None


def _add_local_accuracy(
    data: FederatedData, figures: dict[str, Any], answers: Mapping[int, Answer], *, masked: bool
) -> dict[str, float]:
    """Add the accuracy on clients' shares of the test set, among their classes if `masked`; return it per client."""
    right, seen, local = 0, 0, {}
    targets = data.test.targets()
    for client, answer in answers.items():
        share = data.test_share(client)
        share = share[share < len(answer)]
        held = data.client(client).held() if len(share) else share  # without a share, its samples need not be read
        if len(share) and len(held):  # a client without training samples has no classes to choose among
            logits = answer[share]
            predicted = held[logits[:, held].argmax(-1)] if masked else logits.argmax(-1)
            hits = int((predicted == targets[share]).sum())
            right, seen = right + hits, seen + len(share)
            local[str(client)] = hits / len(share)
    figures["local_accuracy"] = right / seen if seen else None
    return local


def _add_own_data_accuracy(
    data: FederatedData,
    figures: dict[str, Any],
    clients: ClientPool,
    plan: Plan,
    models: Mapping[Plan, State],
    *,
    state: ServerState,
    batch: int,
) -> dict[str, float]:
    """Add the accuracy on clients' own samples, each predicting among its classes; return it per client.

    FedRolex (Section 4) tests the server's model on "each of the client's local datasets". It does not speak of masks,
    but its Table 4 can only be read so: 85.9 % local beside 38.8 % global accuracy, with two classes a client.
    """
    holders = [client for client in range(len(data)) if data.size(client)]
    jobs = [TestOwnDataJob(plan, client, batch) for client in holders]
    right, seen, local = 0, 0, {}
    for client, counts in zip(holders, clients.ask(jobs, models.__getitem__, state), strict=True):
        if counts is not None:
            hits, samples = counts
            right, seen = right + hits, seen + samples
            local[str(client)] = hits / samples
    figures["local_accuracy"] = right / seen if seen else None
    return local


def _ask_own_models(
    setup: Setup, state: ServerState, clients: ClientPool, own_models: Sequence[Participant], settings: Evaluate
) -> dict[int, Answer]:
    """Return the answers of every client's own model to the test samples, of all clients that give one."""
    round = state.context(setup, number=state.round)
    jobs = [
        TestClientModelJob(who, setup.method.plan.plan(round, who), settings.batch, norm_batch(setup, settings))
        for who in own_models
    ]
    results = clients.ask(jobs, lambda plan: state.download(setup, plan), state)
    return {who.client: answer for who, answer in zip(own_models, results, strict=True) if answer is not None}


def _measure_own_models(
    setup: Setup,
    data: FederatedData,
    own_models: Sequence[Participant],
    answers: Mapping[int, Answer],
    levels: Mapping[str, float],
    *,
    masked: bool,
) -> tuple[dict[str, Any], dict[str, float]]:
    """Return the mean figures of the clients' own models, and the local accuracy of every client."""
    task = setup.task
    measured = {client: task.measure(answer, data.test) for client, answer in answers.items()}
    by_level: dict[str, list[dict[str, Any]]] = {}
    for who in own_models:
        level = who.level.name if setup.method.plan.by_level else "full"
        by_level.setdefault(level, []).append(measured[who.client])
    unknown: dict[str, float | None] = {"loss": None, task.metrics[0].name: None}
    figures = _with_global_names(_means(list(measured.values())) if measured else unknown)  # nobody has taken part yet
    figures["submodels"] = {name: _means(by_level[name]) for name in levels if name in by_level}
    _add_worst_and_mean(figures, task.metrics[0])
    return figures, _add_local_accuracy(data, figures, answers, masked=masked) if task.local_accuracy else {}


def _means(several: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    """Return the mean of every figure over those that have it."""
    means: dict[str, float | None] = {}
    for name in several[0]:
        known = [value for figures in several if (value := figures[name]) is not None]
        means[name] = sum(known) / len(known) if known else None
    return means
