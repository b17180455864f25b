"""`Branch`: updates merged into one, by the server or, for a branch of clients, where these train.

A server that merges every client by itself receives every slice. With ``server.fan_in`` consecutive jobs form branches
of so many clients; the slices of a branch are merged in the process that trained them, and the server merges branches.
Branches depend on the order of jobs alone, so that a seed gives the same bytes wherever they are done.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from nestling.client.transport import decode_update
from nestling.cut import Plan, Tally
from nestling.cut.extract import State
from nestling.cut.means import RunningMean
from nestling.methods.context import Setup
from nestling.methods.messages import BranchJob, BranchReply, GroupJob, JobEnvelope, MergedBranch, Update


class Branch:
    """The updates of some clients, merged.

    A coordinate becomes the mean of the clients that held it; what nobody held keeps its value. Tensors that belong to
    one sub-model alone are averaged over the clients that trained it (NeFL, Algorithm 2).

    Parameters
    ----------
    setup
        The experiment.
    model
        The global model before the round.
    """

    def __init__(self, setup: Setup, model: State) -> None:
        self._setup = setup
        self.tally = Tally(setup.cut_axes, model, setup.user_frozen)
        self.submodels: dict[str, RunningMean] = {}

    def restart(self, model: State) -> None:
        """Begin another round, in the memory of the last one."""
        self.submodels = {}
        self.tally.restart(model)

    @torch.no_grad()
    def add(self, update: Update, weight: float, download: Callable[[Plan], State]) -> None:
        """Merge an update; private tensors of the client change nothing. `download` returns a slice as it was sent."""
        setup, state = self._setup, update.state
        own = {name: state[name] for name in sorted(setup.per_submodel & state.keys())}
        if own:
            if update.plan.key not in self.submodels:
                self.submodels[update.plan.key] = RunningMean(own)
            self.submodels[update.plan.key].add(own, weight)
        private = setup.private & state.keys()
        if private:
            before = download(update.plan)
            state = state | {name: before[name] for name in private}
        trusted = update.message is None  # then our own worker has checked that all values are finite
        self.tally.add(state, update.plan, weight, update.rows, clients=len(update.who), trusted=trusted)

    @torch.no_grad()
    def absorb(self, merged: MergedBranch) -> None:
        """Merge what another branch has merged; our own worker has checked its updates."""
        for key, (tensors, weight) in merged.submodels.items():
            if key not in self.submodels:
                model = self._setup.model.state_dict()
                like = {name: tensors[name].to(model[name].dtype) for name in sorted(tensors)}
                self.submodels[key] = RunningMean(like)
            self.submodels[key].add(tensors, weight)
        self.tally.merge(merged.model, trusted=True)

    def merged(self) -> MergedBranch:
        """Return what was merged so far: views, valid until another update is added."""
        submodels = {key: mean.partial() for key, mean in self.submodels.items()}
        return MergedBranch(self.tally.partial(), submodels)


def train_branch(setup: Setup, train: Callable[[JobEnvelope | GroupJob], Any], job: BranchJob) -> BranchReply:
    """Train the clients of a branch and merge their slices; `train` does the job of one or several clients."""
    branch = Branch(setup, setup.model.state_dict() if job.model is None else job.model)  # its memory is the reply's
    updates = []
    for one in job.jobs:
        envelopes = one.envelopes if isinstance(one, GroupJob) else (one,)
        sent: dict[Plan, State] = {envelope.job.plan: envelope.state for envelope in envelopes}
        reply = train(one)
        for update in reply if isinstance(reply, list) else [reply]:
            whole = update if update.message is None else decode_update(setup, update, sent[update.plan])
            branch.add(whole, sum(map(setup.weight, update.who)), sent.__getitem__)
            private = {name: update.state[name] for name in setup.private & update.state.keys()}
            size = None if update.message is None else len(update.message)
            updates.append(replace(update, state=private, message=None, bytes_up=size))
    return BranchReply(branch.merged(), tuple(updates))
