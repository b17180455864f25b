"""One round of federated learning: the page to read first.

Every participant gets a plan: the slice of the model that it trains. Clients train, the server merges their slices
coordinate by coordinate and takes a step. `clients` runs the clients; the method's own steps are in its hooks.
A round does not change the state it began with, but returns the next one: the last complete round is always available.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any

from nestling.data.federated import ClientData
from nestling.events import report
from nestling.methods.context import Merged, Participant, Setup
from nestling.methods.messages import Progress, TrainJob
from nestling.server.aggregate import Merge, merge_reply
from nestling.server.client_pool import ClientPool
from nestling.server.cost_meter import CostMeter
from nestling.server.server_step import step
from nestling.server.state import ServerState


def run_round(
    setup: Setup,
    before: ServerState,
    participants: Sequence[Participant],
    *,
    clients: ClientPool,
    merge: Merge,
    costs: CostMeter,
    public: ClientData | None = None,
) -> tuple[ServerState, dict[str, Any]]:
    """Run the next round; return the state after it, and the line that is recorded of it."""
    method, round = setup.method, before.context(setup, public)  # its number, its learning rate, the model before it

    # 1. Who trains what. The largest jobs first: the order of training, and of merging.
    able = [who for who in participants if who.samples]
    jobs = [TrainJob(who, method.client_plan(round, who), round.number, round.lr) for who in able]
    jobs, seconds = costs.in_time(jobs, before.totals, round)  # devices that miss the deadline are left out
    jobs.sort(key=lambda job: -costs.macs(job.plan, job.who.samples))
    _report_absent(participants, able, jobs)

    # 2. Clients train. A coordinate becomes the mean of those who held it; what nobody held keeps its value.
    merge.restart(before)
    rule = method.aggregator(round, merge)  # the merge itself, unless a part has another one
    progress, totals, kept = Progress(), before.totals.copy(), before.clients.copy()
    received: list[Any] = []  # what the method remembers of the updates, if anything
    for reply in clients.train(jobs, before):
        for update in merge_reply(setup, reply, rule, merge):
            kept.put(setup, update, round.number, before.model)  # what clients keep for their next round, if anything
            costs.add(totals, update, round)
            received = method.received(round, update, received)
            progress += update.progress
    totals.simulated_seconds += seconds

    # 3. The server's step; then what the method does with it (FedDyn corrects, FedMorph morphs, most do nothing).
    trained = setup.parameters - setup.user_frozen
    model, optimizer = step(
        setup.server, before.model, rule.value(), gathered=rule.gathered, memory=before.optimizer, trained=trained
    )
    costs.add_traffic(totals, rule)  # of a rule with messages of its own (secure aggregation)
    result = method.after_merge(round, Merged(model, rule.gathered, received, rule))
    after = ServerState(
        round=round.number,
        model=result.model,
        optimizer=optimizer,
        submodels=before.submodels | rule.submodels(),
        method_state=result.method_state,
        clients=kept,
        totals=totals,
        best=before.best,
        networks=result.networks,
    )
    empty = len(participants) - len(able)
    return after, {
        "round": round.number,
        "clients": rule.clients,
        "dropped": len(able) - rule.clients,
        "lr": round.lr,
        "train_loss": progress.mean_loss,
        "train_accuracy": progress.accuracy,
        **costs.recorded(totals),
        "levels": dict(sorted(Counter(job.who.level.name for job in jobs).items())),
        **({"empty": empty} if empty else {}),
        **result.figures,
        **rule.recorded(),
    }


def _report_absent(participants: Sequence[Participant], able: Sequence[Participant], jobs: Sequence[TrainJob]) -> None:
    empty, drawn = len(participants) - len(able), len(participants)
    if empty:
        report("client without samples", f"{empty} of {drawn} clients have no samples: skipped", logging.INFO)
    if not jobs:
        reason = "all are past the deadline" if able else "none of those drawn has samples"
        reason = reason if participants else "none of those drawn is online"
        report("round without clients", f"nobody takes part ({reason}): no update merges")
