"""`Merge`: the updates of a round, merged coordinate by coordinate into one model."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from nestling.client.branch import Branch
from nestling.methods.context import Setup
from nestling.methods.messages import MergedBranch, Update
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
        self._branch = Branch(setup, state.model)

    @property
    def clients(self) -> int:
        """The number of clients whose updates were merged in this round."""
        return self._branch.tally.clients

    def restart(self, before: ServerState) -> None:
        """Begin a round after some state."""
        self._before = before
        self._branch.restart(before.model)

    def add(self, update: Update, weight: float) -> None:
        """Merge an update; private tensors of the client change nothing."""
        self._branch.add(update, weight, partial(self._before.download, self._setup))

    def absorb(self, merged: MergedBranch) -> None:
        """Merge the updates of a branch of clients, which were merged where these trained."""
        self._branch.absorb(merged)

    def value(self) -> dict[str, Tensor]:
        """Return the merged model; tensors that belong to sub-models are those before the round."""
        return self._branch.tally.value() | {name: self._before.model[name] for name in self._setup.per_submodel}

    def gathered(self, name: str) -> Tensor:
        """Return the weight that each coordinate of a tensor gathered, in its shape; 0 where nobody held it."""
        return self._branch.tally.weights(name)

    def submodels(self) -> dict[str, dict[str, Tensor]]:
        """Return the tensors that belong to each trained sub-model alone: key of its plan → name → tensor."""
        return {key: mean.value() for key, mean in self._branch.submodels.items()}
