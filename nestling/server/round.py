"""One round of federated learning: the page to read first.

Every participant gets a plan: the slice of the model that it trains. Clients train, the server merges their slices
coordinate by coordinate and takes a step. `clients` runs the clients; the method's own steps are in its hooks.
A round does not change the state it began with, but returns the next one: the last complete round is always available.
Where the server waits for nobody (`buffered`), other clients' updates come into the same merge and step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from nestling.data.federated import ClientData
from nestling.methods.context import Merged, Participant, Setup
from nestling.methods.messages import BranchReply, Progress, TrainJob, Update
from nestling.server.aggregate import Merge, merge_reply
from nestling.server.client_pool import ClientPool
from nestling.server.cost_meter import CostMeter
from nestling.server.server_step import step
from nestling.server.state import ServerState
from nestling.server.step_record import Stepped, report_absent


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
    timed = costs.in_time(jobs, before.totals, round)  # without devices that come too late
    jobs = sorted(timed.jobs, key=lambda job: -costs.macs(job.plan, job.who.samples))
    report_absent(participants, able, jobs)

    # 2. Clients train; what comes back is merged (below).
    done = merge_and_step(setup, before, clients.train(jobs, before), merge=merge, costs=costs, public=public)
    done.after.totals.simulated_seconds += timed.seconds
    costs.add_ignored(done.after.totals, timed.ignored, round)
    return done.after, done.line(
        costs,
        round.lr,
        [job.who for job in jobs],
        dropped=len(able) - len(timed.ignored) - done.clients,
        empty=(len(participants) - len(able)) or None,
        discarded=len(timed.ignored) if costs.over_selects else None,
    )


def merge_and_step(
    setup: Setup,
    before: ServerState,
    replies: Iterable[Update | BranchReply],
    *,
    merge: Merge,
    costs: CostMeter,
    public: ClientData | None = None,
) -> Stepped:
    """Merge updates into the model before a round, and take the server's step."""
    method, round = setup.method, before.context(setup, public)

    # 3. A coordinate becomes the mean of those who held it; what nobody held keeps its value.
    merge.restart(before)
    rule = method.aggregator(round, merge)  # the merge itself, unless a part has another one
    progress, totals, kept = Progress(), before.totals.copy(), before.clients.copy()
    received: list[Any] = []  # what the method remembers of the updates, if anything
    for reply in replies:
        for update in merge_reply(setup, reply, rule, merge):
            kept.put(setup, update, round.number, before.model)  # what clients keep for their next round, if anything
            costs.add(totals, update, round)
            received = method.received(round, update, received)
            progress += update.progress

    # 4. The server's step; then what the method does with it (FedDyn corrects, FedMorph morphs, most do nothing).
    trained, old = setup.parameters - setup.user_frozen, before.optimizer
    merged = rule.value()
    model, optimizer = step(setup.server, before.model, merged, gathered=rule.gathered, memory=old, trained=trained)
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
    return Stepped(after, rule.clients, progress, {**result.figures, **rule.recorded()})
