"""Sub-models that are ready to be tested: with statistics of their norms, asked for from clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from nestling.cut import Plan
from nestling.engines import Engine
from nestling.experiment.jobs import NormStatisticsJob, State
from nestling.experiment.replies import replies
from nestling.experiment.server import Server
from nestling.experiment.setting import Setting
from nestling.methods.parts.static_norms import mean_statistics
from nestling.seeds import numpy_stream

_CLIENTS = 8  # whose statistics one job asks for, at most; and jobs that there are at least, for as many workers


def ready(
    setting: Setting, server: Server, engine: Engine, plans: Sequence[Plan], given: Mapping[Plan, State] | None = None
) -> dict[Plan, State]:
    """Return the sub-models of some plans, with statistics of their norms asked of clients, or as they are `given`."""
    plans = [plan for plan in dict.fromkeys(plans) if plan not in (given or {})]
    states = {plan: server.slice(setting, plan) for plan in plans}
    if not setting.statistics:
        return states | dict(given or {})
    asked, batch = _asked(setting, server.round), statistics_batch(setting)
    several = max(1, min(_CLIENTS, len(asked) // _CLIENTS))
    jobs = [
        NormStatisticsJob(plan, state, asked[at : at + several], batch)
        for plan, state in shared(engine, states).items()
        for at in range(0, len(asked), several)
    ]
    parts: dict[Plan, list[tuple[State, int]]] = {plan: [] for plan in states}
    amounts = [float(sum(len(setting.partition.train[client]) for client in job.clients)) for job in jobs]
    for job, told in zip(jobs, all_replies(engine, jobs, sizes(setting, jobs, amounts)), strict=True):
        parts[job.plan].append(told)
    for plan, state in states.items():
        for name, value in mean_statistics(parts[plan]).items():
            state[name] = value.to(state[name].dtype)
    return states | dict(given or {})


def _asked(setting: Setting, round: int) -> tuple[int, ...]:
    """The clients asked for statistics."""
    clients, wanted = setting.fleet.clients, setting.experiment.evaluate.statistics_clients
    if not wanted or wanted >= clients:
        return tuple(filter(setting.holds_samples, range(clients)))
    stream = numpy_stream(setting.experiment.seed, "statistics", round)
    drawn = sorted(stream.choice(clients, wanted, replace=False).tolist())
    able = tuple(filter(setting.holds_samples, drawn))
    # where all of them are without samples, the next one who has some is asked
    return able or tuple(islice(filter(setting.holds_samples, stream.permutation(clients).tolist()), 1))


def statistics_batch(setting: Setting) -> int:
    """The samples in a batch of those that statistics are over."""
    return setting.experiment.evaluate.statistics_batch or setting.experiment.local.batch


def shared(engine: Engine, states: Mapping[Plan, State]) -> dict[Plan, Any]:
    """Hand states to an engine once, for all jobs that they are in."""
    return {plan: engine.share(state) for plan, state in states.items()}


def all_replies(engine: Engine, jobs: Sequence[Any], sizes: Sequence[float] | None = None) -> list[Any]:
    """Return the replies to all jobs, the largest done first where sizes are given."""
    return list(replies(engine, jobs, sizes))


def sizes(setting: Setting, jobs: Sequence[Any], samples: Sequence[float]) -> list[float]:
    """How large jobs are, compared with each other, from the samples of each."""
    return [setting.cost(job.plan).macs * many for job, many in zip(jobs, samples, strict=True)]
