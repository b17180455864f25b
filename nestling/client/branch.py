"""A branch of clients: trained one job after another, and merged in the process that trains them.

A server that merges every client by itself receives every slice. With ``server.fan_in``, consecutive jobs form
branches, and the server merges what each branch has merged. Branches depend on the order of jobs alone, so that a seed
gives the same bytes wherever they are done.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from nestling.client.transport import decode_update
from nestling.cut import Plan, Tally
from nestling.cut.extract import State
from nestling.methods.context import Setup
from nestling.methods.messages import BranchJob, BranchReply, GroupJob, JobEnvelope


def train_branch(setup: Setup, train: Callable[[JobEnvelope | GroupJob], Any], job: BranchJob) -> BranchReply:
    """Train the clients of a branch and merge their slices; `train` does the job of one or several clients."""
    model = setup.model.state_dict() if job.model is None else job.model
    tally = Tally(setup.cut_axes, model, setup.user_frozen, setup.per_submodel)  # its memory is the reply's
    updates = []
    for one in job.jobs:
        envelopes = one.envelopes if isinstance(one, GroupJob) else (one,)
        sent: dict[Plan, State] = {envelope.job.plan: envelope.state for envelope in envelopes}
        reply = train(one)
        for update in reply if isinstance(reply, list) else [reply]:
            whole = update if update.message is None else decode_update(setup, update, sent[update.plan])
            state = setup.without_private(whole.state, update.plan, sent.__getitem__)
            weight, clients = sum(map(setup.weight, update.who)), len(update.who)
            tally.add(state, update.plan, weight, update.rows, clients=clients, trusted=update.message is None)
            private = {name: update.state[name] for name in setup.private & update.state.keys()}
            size = None if update.message is None else len(update.message)
            updates.append(replace(update, state=private, message=None, bytes_up=size))
    return BranchReply(tally.partial(), tuple(updates))
