"""`GroupWorker`: a worker that also trains several clients in one job, together or one by one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nestling.client.grouped.train_group import Member, train_group
from nestling.client.worker import Worker
from nestling.cut.means import mean_state
from nestling.errors import TrainingError, first_line
from nestling.events import report
from nestling.kernels.grouped_layers import Grouped, Layout
from nestling.methods.messages import GroupJob, TrainJob, Update, total_progress
from nestling.seeds import torch_stream


class GroupWorker(Worker):
    """Does the jobs of single clients, and `GroupJob`."""

    def _train_group(self, group: GroupJob) -> list[Update]:
        problem: Exception | None = None
        if group.layout is not None:
            try:
                return self._train_together(group, group.layout)
            except (TrainingError, ValueError) as error:
                problem = error
        jobs = _jobs(group)
        updates: list[Update] = [self(one) for one in group.envelopes]  # an error names its client
        if problem is not None:
            clients = ", ".join(str(job.who.client) for job in jobs)
            report("group split", f"clients {clients} trained one by one, not together: {first_line(problem)}")
        return [mean_update(updates, self._weights(jobs))] if self._only_mean(updates) else updates

    def _train_together(self, group: GroupJob, layout: Layout) -> list[Update]:
        setup, jobs, seed = self._setup, _jobs(group), self._setup.seed
        clients = [job.who.client for job in jobs]

        def streams(name: str) -> list[torch.Generator]:
            return [torch_stream(seed, name, job.round, job.who.client) for job in jobs]

        indices, batch = self._samples.of_group(clients, streams("augment"))
        masks = [self._mask(client, selected=False) for client in clients]
        states = [one.state | one.private for one in group.envelopes]
        held = [None if mask is None else mask.held for mask in masks]
        fields = zip(states, indices, streams("batches"), streams("dropout"), held, strict=True)
        members = [Member(*values) for values in fields]
        trained = train_group(
            self._network(group, layout), members, batch, setup.training, lr=jobs[0].lr, proximal=setup.proximal
        )
        updates = [
            Update((job.who,), job.plan, self._merging(mask), {}, progress)
            for job, mask, progress in zip(jobs, masks, trained.progress, strict=True)
        ]
        if self._only_mean(updates):
            mean = self._without_frozen(trained.mean(self._weights(jobs)))
            who, progress = tuple(job.who for job in jobs), total_progress(trained.progress)
            return [Update(who, jobs[0].plan, updates[0].rows, mean, progress)]
        for update, state in zip(updates, trained.states(), strict=True):
            update.state.update(self._without_frozen(state))
        return [self._encoded(one, update) for one, update in zip(group.envelopes, updates, strict=True)]

    def _only_mean(self, updates: Sequence[Update]) -> bool:
        """Return whether the server needs only the mean: all clients trained the same rows, and keep or add nothing."""
        setup = self._setup
        if setup.private or setup.upload.format != "dense":
            return False
        if any(map(setup.method.overriding, ("finish", "reply", "received", "aggregator"))):
            return False
        return len({update.plan for update in updates}) == 1 and len({update.rows for update in updates}) == 1

    def _weights(self, jobs: Sequence[TrainJob]) -> list[float]:
        return [self._setup.weight(job.who) for job in jobs]

    def _without_frozen(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        frozen = self._setup.user_frozen
        return {name: tensor for name, tensor in state.items() if name not in frozen} if frozen else state

    def _network(self, group: GroupJob, layout: Layout) -> Grouped:
        """Return a grouped network with room for all clients of a job, cached per shape."""
        first = _jobs(group)[0]
        alone = self._submodels.get(first.plan, {}, first.who.level.ratio)
        network: Grouped | None = alone.workspace.get(Grouped)
        if network is None or network.room < len(group.envelopes):
            network = alone.workspace[Grouped] = Grouped(alone.model, len(group.envelopes), layout)
        return network


def mean_update(updates: Sequence[Update], weights: Sequence[float]) -> Update:
    """Return the weighted mean of updates of one plan; of counters, the highest.

    >>> from nestling.cut import Plan
    >>> from nestling.fleet import Level
    >>> from nestling.methods.context import Participant
    >>> from nestling.methods.messages import Progress
    >>> who = [Participant(k, Level("a", 1.0)) for k in (1, 4)]
    >>> parts = [Update((one,), Plan(), None, {"bias": torch.full((2,), float(one.client))}, Progress()) for one in who]
    >>> mean_update(parts, [2, 1]).state
    {'bias': tensor([2., 2.])}
    """
    state = mean_state([update.state for update in updates], weights)
    who = tuple(one for update in updates for one in update.who)
    progress = total_progress(update.progress for update in updates)
    return Update(who, updates[0].plan, updates[0].rows, state, progress)


def _jobs(group: GroupJob) -> list[TrainJob]:
    return [one.job for one in group.envelopes if isinstance(one.job, TrainJob)]
