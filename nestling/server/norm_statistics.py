"""Sub-models that are ready to be tested: with statistics of their norms, measured by clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice

from nestling.cut import Plan
from nestling.data.federated import FederatedData
from nestling.methods.context import Setup
from nestling.methods.messages import NormStatisticsJob, State
from nestling.methods.parts.static_norms import mean_statistics
from nestling.seeds import numpy_stream
from nestling.server.client_pool import ClientPool
from nestling.server.state import ServerState
from nestling.settings import Evaluate

_CLIENTS = 8  # clients of one job, at most; and jobs that there are at least, for as many workers


def with_norm_statistics(
    setup: Setup,
    state: ServerState,
    clients: ClientPool,
    data: FederatedData,
    *,
    settings: Evaluate,
    plans: Sequence[Plan],
    given: Mapping[Plan, State] | None = None,
) -> dict[Plan, State]:
    """Return the sub-models of some plans with statistics of their norms; those that are `given` have theirs.

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
    given
        Sub-models that are complete already.
    """
    plans = [plan for plan in dict.fromkeys(plans) if plan not in (given or {})]
    states = {plan: state.download(setup, plan) for plan in plans}
    if not setup.norm_statistics:
        return states | dict(given or {})
    chosen, batch = _choose_clients(setup, data, settings, state.round), norm_batch(setup, settings)
    several = max(1, min(_CLIENTS, len(chosen) // _CLIENTS))
    jobs = [
        NormStatisticsJob(plan, chosen[at : at + several], batch)
        for plan in states
        for at in range(0, len(chosen), several)
    ]
    parts: dict[Plan, list[tuple[State, int]]] = {plan: [] for plan in states}
    for job, sums in zip(jobs, clients.ask(jobs, states.__getitem__, state), strict=True):
        parts[job.plan].append(sums)
    for plan, submodel in states.items():
        for name, value in mean_statistics(parts[plan]).items():
            submodel[name] = value.to(submodel[name].dtype)
    return states | dict(given or {})


def norm_batch(setup: Setup, settings: Evaluate) -> int:
    """Return the number of samples in a batch that statistics are measured on."""
    return settings.statistics_batch or setup.training.batch


def _choose_clients(setup: Setup, data: FederatedData, settings: Evaluate, round: int) -> tuple[int, ...]:
    """Return the clients that measure statistics: all who have samples, or some that are drawn."""
    wanted = settings.statistics_clients

    def has_samples(client: int) -> bool:
        return data.size(client) > 0

    if not wanted or wanted >= setup.clients:
        return tuple(filter(has_samples, range(setup.clients)))
    stream = numpy_stream(setup.seed, "statistics", round)
    drawn = sorted(stream.choice(setup.clients, wanted, replace=False).tolist())
    able = tuple(filter(has_samples, drawn))
    # where all of them are without samples, the next one who has some is chosen
    return able or tuple(islice(filter(has_samples, stream.permutation(setup.clients).tolist()), 1))
