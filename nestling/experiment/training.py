"""The training of a round's clients: their jobs on an engine, and what comes back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from nestling.data import Lazy
from nestling.engines import Engine
from nestling.experiment.cohorts import Cohort
from nestling.experiment.jobs import Train, Update
from nestling.experiment.replies import replies


def trained(
    engine: Engine, cohorts: Sequence[Cohort], job: Callable[[int], Train], tick: Callable[[], None]
) -> Iterator[Update]:
    """Train cohorts and yield the updates of their clients in one order, whoever is done first.

    Parameters
    ----------
    engine
        Where they train.
    cohorts
        Which clients train together.
    job
        Makes the job of a client, when it is handed out: what waits takes no memory.
    tick
        Called once for every client.
    """
    jobs = Lazy(len(cohorts), lambda k: cohorts[k].job([job(client) for client in cohorts[k].clients]), keep=0)
    for reply in replies(engine, jobs, tick=tick):
        updates = reply if isinstance(reply, list) else [reply]
        for _ in range(sum(len(update.clients) for update in updates) - 1):  # the first was counted as the reply came
            tick()
        yield from updates
