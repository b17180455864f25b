"""`Simulator`: runs and tests the rounds of a simulation on an engine."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from nestling.client.grouped.group_worker import GroupWorker
from nestling.engines import Engine, LocalEngine
from nestling.experiment.simulated_clients import SimulatedClients
from nestling.experiment.simulation import Simulation
from nestling.kernels.device import find_device
from nestling.server.aggregate import Merge
from nestling.server.evaluation import evaluate
from nestling.server.round import run_round
from nestling.server.state import ServerState


class Simulator:
    """Runs rounds one after another. It reuses memory between rounds, but keeps nothing that changes their numbers.

    Parameters
    ----------
    simulation
        The experiment.
    engine
        Where clients train; by default, in this process.
    tick
        Called once for every client whose update arrives.

    Examples
    --------
    >>> from nestling.experiment import find
    >>> from nestling.experiment.simulation import Overrides, simulate
    >>> simulation = simulate(Overrides(find("heterofl-digits").with_settings(["local.epochs=1"])))
    >>> after, record = Simulator(simulation).run_round(ServerState.start(simulation.setup))
    >>> record["round"], record["clients"]
    (1, 10)
    """

    def __init__(
        self, simulation: Simulation, engine: Engine | None = None, tick: Callable[[], None] | None = None
    ) -> None:
        self._simulation = simulation
        settings, setup = simulation.settings, simulation.setup
        if engine is None:
            device = find_device(settings.device)
            public = simulation.public_at_clients
            engine = LocalEngine(partial(GroupWorker, setup, simulation.data, device, settings.precision, public))
        self.clients = SimulatedClients(simulation, engine, tick)
        self._merge = Merge(setup, ServerState.start(setup))

    def run_round(self, before: ServerState) -> tuple[ServerState, dict[str, Any]]:
        """Run the round after a state; return the state after it, and its line in metrics.jsonl."""
        simulation = self._simulation
        participants = simulation.participants(before.round + 1)
        return run_round(
            simulation.setup,
            before,
            participants,
            clients=self.clients,
            merge=self._merge,
            costs=simulation.costs,
            public=simulation.public,
        )

    def evaluate(self, state: ServerState) -> tuple[dict[str, Any], dict[str, float]]:
        """Test the models of a state; return the figures, and the local accuracy of every client."""
        simulation = self._simulation
        own_models = [simulation.participant(client, state.round) for client in state.clients.private.clients()]
        return evaluate(
            simulation.setup,
            state,
            self.clients,
            simulation.data,
            levels=simulation.levels,
            settings=simulation.settings.evaluate,
            own_models=own_models,
        )
