"""`Server`: what the server knows between rounds; all of it goes into a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nestling.cut import Plan, Tally, extract
from nestling.cut.extract import cuts
from nestling.experiment.client_store import ClientStore
from nestling.experiment.setting import Setting


@dataclass(eq=False)
class Server:
    """The state of an experiment after some round.

    Attributes
    ----------
    round
        Rounds done.
    state
        The global model.
    memory
        What the server's optimiser remembers.
    submodels
        What every sub-model has for itself: key of its plan → name → tensor. One that nobody trained yet is missing.
    private
        What clients keep to themselves.
    memories
        What clients remember from turn to turn.
    notes
        What the server remembers for the method.
    coverage
        For every axis, how many client-rounds trained each of its units: (size,) int64.
    counts
        Bytes and MACs so far, and seconds on the simulated clock.
    setups
        Client → keys of the frozen tensors that were handed out to it.
    tally
        Where the slices of a round are merged: the same memory every round.
    best
        The best evaluation so far, and its round; empty before the first.
    networks
        What came up on the way to this round's model and may be tested beside it: name → plan, weights.
    """

    round: int
    state: dict[str, Tensor]
    memory: dict[str, Tensor]
    submodels: dict[str, dict[str, Tensor]]
    private: ClientStore
    memories: ClientStore
    notes: dict[str, Tensor]
    coverage: dict[str, Tensor]
    counts: dict[str, float]
    tally: Tally
    best: dict[str, Any] = field(default_factory=dict)
    setups: dict[int, frozenset[str]] = field(default_factory=dict)
    networks: Mapping[str, tuple[Plan, Mapping[str, Tensor]]] = field(default_factory=dict)

    @classmethod
    def start(cls, setting: Setting, folder: Path | None) -> Server:
        """The server before the first round of a run, in a directory or without."""
        state = {name: tensor.detach().clone() for name, tensor in setting.model.state_dict().items()}
        return cls(
            round=0,
            state=state,
            memory={},
            submodels={},
            private=ClientStore(None if folder is None else folder / "private"),
            memories=ClientStore(None if folder is None else folder / "memory"),
            notes=setting.notes,
            coverage={name: torch.zeros(size, dtype=torch.long) for name, size in setting.axes.axes.items()},
            counts={"bytes_down": 0, "bytes_up": 0, "bytes_setup": 0, "client_macs": 0, "simulated_seconds": 0.0},
            tally=Tally(setting.cut_axes, state, setting.user_frozen),
        )

    def next(self) -> Server:
        """A server one round on, of which everything can be changed without changing this one."""
        return replace(
            self,
            round=self.round + 1,
            submodels=dict(self.submodels),
            private=self.private.copy(),
            memories=self.memories.copy(),
            networks={},
            coverage={name: counts.clone() for name, counts in self.coverage.items()},
            counts=dict(self.counts),
            setups=dict(self.setups),
        )

    def own(self, setting: Setting, plan: Plan) -> dict[str, Tensor]:
        """What the sub-model of a plan has for itself: as trained so far, or as it begins."""
        if plan.key in self.submodels or not setting.inconsistent:
            return self.submodels.get(plan.key, {})
        how = cuts(setting.cut_axes, plan)
        begin = setting.method.begin(setting.axes, plan)
        own = {name: how[name].take(self.state[name]) for name in sorted(setting.inconsistent & how.keys())}
        return {name: torch.full_like(tensor, begin[name]) if name in begin else tensor for name, tensor in own.items()}

    def slice(self, setting: Setting, plan: Plan) -> dict[str, Tensor]:
        """The sub-model of a plan: cut out of the global model, with what it has for itself."""
        return extract(setting.cut_axes, plan, self.state) | self.own(setting, plan)

    def whole(self, setting: Setting) -> dict[str, Tensor]:
        """The whole model, as it is saved."""
        full = setting.whole(self.notes)
        return self.given(setting, full).get(full) or self.slice(setting, full)

    def given(self, setting: Setting, full: Plan) -> dict[Plan, dict[str, Tensor]]:
        """The whole model under the plan `full` where the method keeps it apart from what slices are merged into."""
        state = setting.method.whole(setting.turn(-1, 1.0, 0, self.notes))
        return {} if state is None else {full: dict(state)}

    def told(self, setting: Setting) -> dict[str, Any]:
        """What was spent so far, as it is recorded; simulated time only where there are devices."""
        return {**self.counts, "simulated_seconds": self.counts["simulated_seconds"] if setting.devices else None}

    def setup_bytes(self, setting: Setting, client: int, plan: Plan) -> int:
        """The bytes of frozen tensors that a client has yet to receive before it can train the slice of a plan."""
        key, size = setting.setup(plan) if setting.user_frozen else ("", 0)
        return 0 if key in self.setups.get(client, ()) else size

    def hand_out(self, setting: Setting, client: int, plan: Plan) -> None:
        """Count the frozen tensors that a client receives with the slice of a plan, if it has not got them yet."""
        size = self.setup_bytes(setting, client, plan)
        if size:
            self.counts["bytes_setup"] += size
            self.setups[client] = self.setups.get(client, frozenset()) | {setting.setup(plan)[0]}

    def cover(self, plan: Plan, clients: int = 1) -> None:
        """Count the units that a plan keeps, for so many clients."""
        for name, counts in self.coverage.items():
            for start, stop in plan.runs.get(name, ((0, len(counts)),)):
                counts[start:stop] += clients
