"""`Simulator`: runs and tests the rounds of a simulation on an engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from nestling.client.grouped.group_worker import GroupWorker
from nestling.cut import Plan
from nestling.cut.extract import State
from nestling.engines import Engine, LocalEngine
from nestling.experiment.callback import Training
from nestling.experiment.simulated_clients import SimulatedClients
from nestling.experiment.simulation import Simulation, check_clock
from nestling.kernels.device import find_device
from nestling.methods import Participant
from nestling.server.aggregate import Merge
from nestling.server.arrivals import SimulatedArrivals
from nestling.server.buffered import Arrivals, run_buffered
from nestling.server.client_pool import ClientPool
from nestling.server.evaluation import evaluate
from nestling.server.norm_statistics import with_norm_statistics
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
    tick, on_training
        As of `SimulatedClients`.
    clients, arrivals
        The clients, and the order of their updates, if they are not simulated on an engine.

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
        self,
        simulation: Simulation,
        engine: Engine | None = None,
        tick: Callable[[], None] | None = None,
        on_training: Callable[[Training], None] | None = None,
        *,
        clients: ClientPool | None = None,
        arrivals: Arrivals | None = None,
    ) -> None:
        self._simulation = simulation
        setup = simulation.setup
        if clients is None:
            check_clock(simulation)
        self.clients = clients or SimulatedClients(simulation, engine or _engine_here(simulation), tick, on_training)
        self._merge = Merge(setup, ServerState.start(setup))
        self._arrivals = arrivals
        if arrivals is None and setup.server.buffer:
            at_once = simulation.fleet.per_round
            self._arrivals = SimulatedArrivals(
                setup, simulation, self.clients, simulation.costs, at_once, simulation.public
            )
        self._measured: tuple[int, Mapping[str, State]] = (-1, {})

    def participants(self, round: int) -> list[Participant]:
        """Return who takes part in a round."""
        return self._simulation.participants(round)

    def run_round(self, before: ServerState) -> tuple[ServerState, dict[str, Any]]:
        """Run the round after a state; return the state after it, and its line in metrics.jsonl."""
        simulation = self._simulation
        if self._arrivals is not None:
            return run_buffered(
                simulation.setup,
                before,
                self._arrivals,
                merge=self._merge,
                costs=simulation.costs,
                public=simulation.public,
            )
        return run_round(
            simulation.setup,
            before,
            self.participants(before.round + 1),
            clients=self.clients,
            merge=self._merge,
            costs=simulation.costs,
            public=simulation.public,
        )

    def evaluate(self, state: ServerState) -> tuple[dict[str, Any], dict[str, float]]:
        """Test the models of a state; return the figures, and the local accuracy of every client."""
        simulation = self._simulation
        return evaluate(
            simulation.setup,
            state,
            self.clients,
            simulation.data,
            levels=simulation.levels,
            settings=simulation.settings.evaluate,
            own_models=self._own_models(state) if simulation.setup.private else (),
            on_models=partial(self._keep_statistics, state.round),
        )

    def _own_models(self, state: ServerState) -> list[Participant]:
        """Return the clients that have a model of their own."""
        return [self._simulation.participant(client, state.round) for client in state.clients.private.clients()]

    def norm_statistics(self, state: ServerState, *, measure: bool = True) -> Mapping[str, State] | None:
        """Return the norm statistics of all tested sub-models: key of a plan → name → tensor.

        Those of the last evaluation are returned if it was of this state. Otherwise clients measure them or, without
        `measure`, the result is None.
        """
        simulation = self._simulation
        setup = simulation.setup
        if not setup.norm_statistics:
            return {}
        if self._measured[0] != state.round:
            if not measure:
                return None
            ratios = simulation.levels.values()
            plans = [setup.global_plan(state.method_state)]
            plans += [setup.submodel_plan(ratio, state.method_state) for ratio in ratios]
            settings = simulation.settings.evaluate
            states = with_norm_statistics(
                setup, state, self.clients, simulation.data, settings=settings, plans=plans, complete={}
            )
            self._keep_statistics(state.round, states)
        return self._measured[1]

    def _keep_statistics(self, round: int, models: Mapping[Plan, State]) -> None:
        names = self._simulation.setup.norm_statistics
        kept = {plan.key: {name: state[name] for name in state if name in names} for plan, state in models.items()}
        self._measured = (round, kept)


def _engine_here(simulation: Simulation) -> Engine:
    settings, public = simulation.settings, simulation.public_at_clients
    device = find_device(settings.device)
    return LocalEngine(partial(GroupWorker, simulation.setup, simulation.data, device, settings.precision, public))
