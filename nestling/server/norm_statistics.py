"""Statistics of batch norms for sub-models that are about to be tested, measured by clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice

from nestling.cut import Plan
from nestling.cut.extract import State
from nestling.data.federated import FederatedData
from nestling.methods.context import Setup
from nestling.methods.messages import NormStatisticsJob
from nestling.methods.parts.static_norms import mean_statistics
from nestling.seeds import numpy_stream
from nestling.server.client_pool import ClientPool
from nestling.server.state import ServerState
from nestling.settings import Evaluate

_MAX_CLIENTS_PER_JOB = 8
_MIN_JOBS = 8  # if there are as many clients, so that several workers have something to do


def with_norm_statistics(
    setup: Setup,
    state: ServerState,
    clients: ClientPool,
    data: FederatedData,
    *,
    settings: Evaluate,
    plans: Sequence[Plan],
    complete: Mapping[Plan, State],
) -> dict[Plan, State]:
    """Return the sub-models of some plans with the statistics of their batch norms.

    Parameters
    ----------
    setup, state
        The experiment, and the state of its server.
    clients, data
        The clients that measure statistics, and their samples.
    settings
        How many clients measure them, and in which batches.
    plans
        The sub-models.
    complete
        Sub-models that have their statistics already; they are returned, too.
    """
    plans = [plan for plan in dict.fromkeys(plans) if plan not in complete]
    states = {plan: state.download(setup, plan) for plan in plans}
    if not setup.norm_statistics or not states:
        return states | dict(complete)
    chosen, batch = _choose_clients(setup, data, settings, state.round), norm_batch(setup, settings)
    per_job = max(1, min(_MAX_CLIENTS_PER_JOB, len(chosen) // _MIN_JOBS))
    jobs = [
        NormStatisticsJob(plan, chosen[start : start + per_job], batch)
        for plan in states
        for start in range(0, len(chosen), per_job)
    ]
    parts: dict[Plan, list[tuple[State, int]]] = {plan: [] for plan in states}
    for job, sums in zip(jobs, clients.ask(jobs, states.__getitem__, state), strict=True):
        parts[job.plan].append(sums)
    for plan, submodel in states.items():
        for name, value in mean_statistics(parts[plan]).items():
            submodel[name] = value.to(submodel[name].dtype)
    return states | dict(complete)


def norm_batch(setup: Setup, settings: Evaluate) -> int:
    """Return the batch size with which statistics are measured."""
    return settings.norm_batch or setup.training.batch_size


def _choose_clients(setup: Setup, data: FederatedData, settings: Evaluate, round: int) -> tuple[int, ...]:
    """Return the clients that measure statistics: all that have samples, or some that are drawn."""
    wanted = settings.norm_clients

    def has_samples(client: int) -> bool:
        return data.size(client) > 0

    if not wanted or wanted >= setup.clients:
        return tuple(filter(has_samples, range(setup.clients)))
    stream = numpy_stream(setup.seed, "statistics", round)
    drawn = sorted(stream.choice(setup.clients, wanted, replace=False).tolist())
    able = tuple(filter(has_samples, drawn))
    # if none of them has samples, draw one that has
    return able or tuple(islice(filter(has_samples, stream.permutation(setup.clients).tolist()), 1))
