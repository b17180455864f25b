"""Who arrives when, by the simulated clock: a schedule that knows nothing of workers."""

from dataclasses import replace

import pytest

from nestling.events import collect
from nestling.experiment.simulation import Overrides, simulate
from nestling.experiment.simulator import Simulator
from nestling.server.arrivals import SimulatedArrivals
from nestling.server.buffered import kept_versions
from nestling.server.in_flight import Flights, InFlight
from nestling.server.state import ServerState
from tests.server.straggler_cases import straggling


def arrivals_of(experiment):
    simulation = simulate(Overrides(experiment))
    return simulation, SimulatedArrivals(
        simulation.setup, simulation, None, simulation.costs, simulation.fleet.per_round, simulation.public
    )


def schedules(experiment, count):
    """The jobs of some steps, as (client, round), and what is left after each; nobody trains."""
    simulation, arrivals = arrivals_of(experiment)
    state, steps = ServerState.start(simulation.setup), []
    for _ in range(count):
        jobs, rest = arrivals._schedule(state)
        steps.append(([(job.who.client, job.round) for job in jobs], rest))
        totals = replace(state.totals.copy(), simulated_seconds=rest.now)
        state = replace(state, round=state.round + 1, flights=rest.flights, totals=totals)
    return simulation, steps


def test_steps_follow_the_clock_and_nobody_waits(tmp_path):
    simulation, steps = schedules(straggling(tmp_path, settings=["server.buffer=2"]), 30)
    slow = {client for client in range(6) if simulation.devices.device_of(client).name == "slow"}
    clock, late = 0.0, []
    for number, (jobs, rest) in enumerate(steps, start=1):
        assert len(jobs) == 2
        assert len({client for client, _ in jobs}) == 2  # one update of a client in a step
        assert rest.now >= clock
        assert all(one.arrives >= rest.now for one in rest.flights.clients)
        busy = [one.client for one in rest.flights.clients]
        assert len(set(busy)) == len(busy) <= 3
        assert set(rest.flights.versions) == {one.round for one in rest.flights.clients}
        clock = rest.now
        late += [(number - began, client in slow) for client, began in jobs]
    assert max(steps_late for steps_late, _ in late) > 1
    mean = {kind: [s for s, one in late if one is kind] for kind in (True, False)}
    assert sum(mean[True]) / len(mean[True]) > sum(mean[False]) / len(mean[False])


def test_updates_that_are_too_late_are_ignored_and_their_models_dropped(tmp_path):
    experiment = straggling(tmp_path, settings=["server.buffer=1", "server.max_staleness=2"])
    with collect() as events:
        simulation, steps = schedules(experiment, 30)
    late = [job for _, rest in steps for job in rest.discarded]
    assert late
    assert all(simulation.devices.device_of(job.who.client).name == "slow" for job in late)
    assert sum(event.count for event in events if event.kind == "update too late") == len(late)
    for number, (jobs, rest) in enumerate(steps, start=1):
        assert all(number - began <= 2 for _, began in jobs)
        assert all(number + 1 - version <= 2 for version in rest.flights.versions)


def test_ignored_clients_still_cost(tmp_path):
    experiment = straggling(tmp_path, settings=["server.buffer=1", "server.max_staleness=1", "local.epochs=1"])
    simulation = simulate(Overrides(experiment))
    simulator, state = Simulator(simulation), ServerState.start(simulation.setup)
    jobs = discarded = 0
    while not discarded:
        state, line = simulator.run_round(state)
        jobs, discarded = jobs + line["clients"], discarded + line["discarded"]
        assert line["models_kept"] <= 1
    assert state.totals.bytes_down > state.totals.bytes_up  # uploads of those are not taken
    assert simulation.costs.recorded(state.totals)["simulated_seconds"] == line["simulated_seconds"] > 0


def test_a_step_goes_on_with_those_who_are_there_if_all_others_are_offline(tmp_path):
    simulation, arrivals = arrivals_of(straggling(tmp_path, settings=["server.buffer=3"]))
    arrivals.roster = type("Two", (), {"candidates": lambda *_: iter([4, 1]), "participant": simulation.participant})()
    with collect() as events:
        jobs, rest = arrivals._schedule(ServerState.start(simulation.setup))
    assert sorted(job.who.client for job in jobs) == [1, 4]
    assert not rest.flights.clients
    assert [event.kind for event in events] == ["buffer not full"]


@pytest.mark.parametrize(("most", "kept"), [(1, {5}), (2, {4, 5}), (9, {2, 4, 5})])
def test_models_are_kept_while_a_client_trains_them(tmp_path, most, kept):
    state = ServerState.start(arrivals_of(straggling(tmp_path))[0].setup)
    flights = Flights(tuple(InFlight(client, round, 9.0) for client, round in enumerate((2, 4, 5, 5))))
    before = replace(state, round=4, flights=Flights((), {2: "second", 3: "third", 4: "fourth"}))
    left = kept_versions(before, flights, most)
    assert set(left.versions) == kept
    assert left.versions[5].model is before.model
