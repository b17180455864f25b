"""What sub-models have for themselves, averaged among the clients that trained them (NeFL, Algorithm 2)."""

from __future__ import annotations

import torch
from torch import Tensor

from nestling.cut.means import Mean, room_for
from nestling.experiment.jobs import Update


class SubmodelMeans:
    """The running means of a round, one per sub-model.

    Parameters
    ----------
    names
        The state names that every sub-model has for itself.
    """

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names
        self._means: dict[str, Mean] = {}
        self._counters: dict[str, dict[str, Tensor]] = {}
        self._dtypes: dict[str, dict[str, torch.dtype]] = {}

    @torch.no_grad()
    def add(self, update: Update, weight: float) -> None:
        """Add what one client returned."""
        own = {name: update.state[name] for name in sorted(self._names & update.state.keys())}
        if not own:
            return
        key = update.plan.key
        floats = [name for name, tensor in own.items() if tensor.is_floating_point()]
        if key not in self._means:
            self._means[key] = Mean(room_for(floats, own), None, own)
            self._counters[key] = {name: tensor.clone() for name, tensor in own.items() if name not in floats}
            self._dtypes[key] = {name: tensor.dtype for name, tensor in own.items()}
        self._means[key].add([own[name] for name in floats], weight)
        for name, best in self._counters[key].items():
            self._counters[key][name] = torch.maximum(best, own[name])

    def value(self) -> dict[str, dict[str, Tensor]]:
        """Return what every sub-model that was trained has for itself now."""
        return {
            key: {
                name: self._counters[key][name] if name in self._counters[key] else mean.tensors[name].to(dtype)
                for name, dtype in self._dtypes[key].items()
            }
            for key, mean in self._means.items()
        }
