"""`Merge`: the updates of a round, merged coordinate by coordinate into one model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from nestling.cut import PartialMerge, Plan, Tally
from nestling.methods.aggregator import Aggregator
from nestling.methods.context import Setup
from nestling.methods.messages import BranchReply, Update
from nestling.server.state import ServerState


class Merge:
    """Merges the updates of one round after another, in the same memory.

    A coordinate becomes the mean of the clients that held it; what nobody held keeps its value. Tensors that belong to
    one sub-model alone are averaged over the clients that trained it (NeFL, Algorithm 2).

    Parameters
    ----------
    setup
        The experiment.
    state
        The state before some round: what is merged has its shapes.
    """

    def __init__(self, setup: Setup, state: ServerState) -> None:
        self._setup, self._before = setup, state
        self._tally = Tally(setup.cut_axes, state.model, setup.user_frozen, setup.per_submodel)

    @property
    def clients(self) -> int:
        """The number of clients whose updates were merged in this round."""
        return self._tally.clients

    def restart(self, before: ServerState) -> None:
        """Begin a round after some state."""
        self._before = before
        self._tally.restart(before.model)

    def sent(self, plan: Plan) -> dict[str, Tensor]:
        """Return the slice that the clients with this plan received."""
        return self._before.download(self._setup, plan)

    def add(self, update: Update, weight: float) -> None:
        """Merge an update; private tensors of the client change nothing."""
        plan = update.plan
        state = self._setup.without_private(update.state, plan, self.sent)
        trusted = update.message is None  # then our own worker has checked that all values are finite
        self._tally.add(state, plan, weight, update.rows, clients=len(update.who), trusted=trusted)

    def absorb(self, merged: PartialMerge) -> None:
        """Merge the updates of a branch of clients, which our own worker has checked and merged."""
        self._tally.merge(merged, trusted=True)

    def value(self) -> dict[str, Tensor]:
        """Return the merged model; tensors that belong to sub-models are those before the round."""
        return self._tally.value() | {name: self._before.model[name] for name in self._setup.per_submodel}

    def gathered(self, name: str) -> Tensor:
        """Return the weight that each coordinate of a tensor gathered, in its shape; 0 where nobody held it."""
        return self._tally.weights(name)

    def submodels(self) -> dict[str, dict[str, Tensor]]:
        """Return the tensors that belong to each trained sub-model alone: key of its plan → name → tensor."""
        return self._tally.submodels()

    def recorded(self) -> dict[str, Any]:
        """Return nothing: the round's line has no more to say about a mean."""
        return {}


def merge_reply(setup: Setup, reply: Update | BranchReply, rule: Aggregator, merge: Merge) -> Sequence[Update]:
    """Merge a client's update by the rule of the round, or what a branch of clients has merged; return the updates."""
    if isinstance(reply, BranchReply):
        merge.absorb(reply.merged)
        return reply.updates
    rule.add(reply, sum(setup.weight(who) for who in reply.who))
    return (reply,)
