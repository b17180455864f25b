"""`ServerState`: the state of the server between rounds; all of it is saved in a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nestling.cut import Plan, extract
from nestling.cut.extract import State, cuts
from nestling.data.federated import ClientData
from nestling.methods.context import RoundContext, Setup
from nestling.seeds import derive
from nestling.server.client_store import ClientStore
from nestling.server.in_flight import Flights
from nestling.settings import learning_rate


@dataclass(eq=False)
class Totals:
    """What was spent so far.

    Attributes
    ----------
    bytes_down, bytes_up, bytes_setup
        Bytes to clients, from clients, and of what was handed out once: frozen tensors, public samples.
    client_macs
        Multiply-accumulates of all training.
    simulated_seconds
        Time on the simulated clock.
    coverage
        For every axis, how many client-rounds trained each of its units: (size,) int64.
    handed_out
        Client → keys of what it received once: frozen tensors, public samples.
    """

    bytes_down: int = 0
    bytes_up: int = 0
    bytes_setup: int = 0
    client_macs: int = 0
    simulated_seconds: float = 0.0
    coverage: dict[str, Tensor] = field(default_factory=dict)
    handed_out: dict[int, frozenset[str]] = field(default_factory=dict)

    def copy(self) -> Totals:
        """Return a copy that can be changed without changing this one."""
        coverage = {name: counts.clone() for name, counts in self.coverage.items()}
        return replace(self, coverage=coverage, handed_out=dict(self.handed_out))

    def counts(self) -> dict[str, int]:
        """Return all counters but the simulated clock, in the order of the record."""
        names = ("bytes_down", "bytes_up", "bytes_setup", "client_macs")
        return {name: getattr(self, name) for name in names}

    def cover(self, plan: Plan, clients: int = 1) -> None:
        """Count the units that a plan keeps, once per client."""
        for name, counts in self.coverage.items():
            for start, stop in plan.runs.get(name, ((0, len(counts)),)):
                counts[start:stop] += clients


@dataclass(frozen=True, eq=False)
class ServerState:
    """The state of an experiment after some round. A round never changes it, but returns the next one.

    Attributes
    ----------
    round
        Rounds done.
    model
        The global model.
    optimizer
        The state of the server's optimizer.
    submodels
        The tensors that belong to one sub-model alone: key of its plan → name → tensor. One that was never trained is
        missing.
    method_state
        What the server keeps for the method.
    clients
        What clients keep from round to round.
    totals
        What was spent so far.
    best
        The best evaluation so far, and its round; empty before the first.
    networks
        Other networks of this round, tested beside the model: name → plan, weights.
    flights
        The clients that train, and the models that they began with, where the server waits for nobody.
    """

    round: int
    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    submodels: dict[str, dict[str, Tensor]]
    method_state: dict[str, Tensor]
    clients: ClientStore
    totals: Totals
    best: dict[str, Any] = field(default_factory=dict)
    networks: Mapping[str, tuple[Plan, State]] = field(default_factory=dict)
    flights: Flights = field(default_factory=Flights)

    @classmethod
    def start(cls, setup: Setup, folder: Path | None = None) -> ServerState:
        """Return the state before the first round of a run, in a directory or without."""
        coverage = {name: torch.zeros(size, dtype=torch.long) for name, size in setup.axes.axes.items()}
        return cls(
            round=0,
            model={name: tensor.detach().clone() for name, tensor in setup.model.state_dict().items()},
            optimizer={},
            submodels={},
            method_state=dict(setup.initial_method_state),
            clients=ClientStore.start(folder),
            totals=Totals(coverage=coverage),
        )

    def context(self, setup: Setup, public: ClientData | None = None, number: int | None = None) -> RoundContext:
        """Return the context of the next round, or of another `number`."""
        number = self.round + 1 if number is None else number
        lr = learning_rate(setup.training, number, setup.rounds) if number else 0.0
        seed = derive(setup.seed, "between", number)
        return RoundContext(setup, number, lr, self.model, self.method_state, public, seed)

    def version(self, number: int) -> ServerState:
        """Return the state with the model that clients of the round `number` began with, if one still trains it."""
        if number == self.round + 1:
            return self
        kept = self.flights.versions[number]
        return replace(self, round=number - 1, model=kept.model, submodels=kept.submodels)

    def submodel_tensors(self, setup: Setup, plan: Plan) -> dict[str, Tensor]:
        """Return the tensors that belong to this sub-model alone; initial values if it was never trained."""
        if plan.key in self.submodels or not setup.per_submodel:
            return self.submodels.get(plan.key, {})
        slices = cuts(setup.cut_axes, plan)
        start = setup.method.initial(setup, plan)
        own = {name: slices[name].take(self.model[name]) for name in sorted(setup.per_submodel & slices.keys())}
        return {name: torch.full_like(tensor, start[name]) if name in start else tensor for name, tensor in own.items()}

    def download(self, setup: Setup, plan: Plan) -> dict[str, Tensor]:
        """Return the sub-model of a plan: cut out of the global model, with the tensors that belong to it alone."""
        return extract(setup.cut_axes, plan, self.model) | self.submodel_tensors(setup, plan)

    def separate_global_model(self, setup: Setup) -> dict[Plan, dict[str, Tensor]]:
        """Return the global model by its plan if the method keeps it apart from the merged one; else nothing."""
        state = setup.method.global_model(setup, self.method_state)
        return {} if state is None else {setup.global_plan(self.method_state): dict(state)}

    def global_model(self, setup: Setup) -> dict[str, Tensor]:
        """Return the global model, as it is saved."""
        plan = setup.global_plan(self.method_state)
        return self.separate_global_model(setup).get(plan) or self.download(setup, plan)
