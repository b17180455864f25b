"""The training of a round's clients: their jobs on an engine, and what comes back.

A cohort that was lost with its worker is trained once more, each of its clients alone. It may be one of them that ends
workers, or all together that take too much memory: the others are not dropped for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from nestling.data import Lazy
from nestling.engines import Engine
from nestling.run.cohorts import Cohort
from nestling.run.jobs import Train, Update
from nestling.run.replies import replies


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
        Called once for every client, those that are dropped at the end.
    """
    missing = dict.fromkeys(client for cohort in cohorts for client in cohort.clients)
    alone = {client for cohort in cohorts if len(cohort.clients) == 1 for client in cohort.clients}
    for update in _wave(engine, cohorts, job, tick):
        for client in update.clients:
            del missing[client]
        yield update
    again = [Cohort((client,), None) for client in missing if client not in alone]
    for update in _wave(engine, again, job, tick) if again else ():
        del missing[update.clients[0]]
        yield update
    for _ in missing:
        tick()


def _wave(
    engine: Engine, cohorts: Sequence[Cohort], job: Callable[[int], Train], tick: Callable[[], None]
) -> Iterator[Update]:
    jobs = Lazy(len(cohorts), lambda k: cohorts[k].job([job(client) for client in cohorts[k].clients]), keep=0)
    for reply in replies(engine, jobs, tick=tick):
        updates = reply if isinstance(reply, list) else [reply]
        for _ in range(sum(len(update.clients) for update in updates) - 1):  # the first was counted as the reply came
            tick()
        yield from updates
