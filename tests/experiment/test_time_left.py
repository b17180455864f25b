"""The estimate of the time that is left: exact where the pace is constant, known after the first client."""

import pytest

from nestling.experiment.callback import Training
from nestling.experiment.record import due
from nestling.experiment.simulation import Overrides, simulate
from nestling.experiment.time_left import TimeLeft
from nestling.methods.messages import TrainJob
from nestling.server.state import ServerState
from nestling.settings import FleetSettings
from tests.run_cases import tiny


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture(scope="module")
def simulation():
    fleet = FleetSettings(clients=4, per_round=4, levels="a-b")
    return simulate(Overrides(tiny(rounds=5, fleet=fleet)))


def jobs_of(simulation, round):
    context = ServerState.start(simulation.setup).context(simulation.setup)
    method = simulation.setup.method
    return tuple(TrainJob(who, method.client_plan(context, who), round, 0.1) for who in simulation.participants(round))


def play(simulation, start=0, pace=1e-9, tested=0.0, first=0.0):
    """Play the rounds after `start` at a constant pace; yield the clock and the estimate after clients and rounds."""
    clock = Clock()
    left = TimeLeft(simulation, start, clock)
    clock.now += first
    for round in range(start + 1, simulation.settings.rounds + 1):
        jobs = jobs_of(simulation, round)
        left.on_training(Training(jobs))
        for place, job in enumerate(jobs):
            left.on_training(Training(jobs, jobs[:place], (job,)))
            clock.now += pace * simulation.costs.macs(job.plan, job.who.samples)
            left.on_training(Training(jobs, jobs[: place + 1]))
            yield clock.now, left.seconds()
        if due(simulation.settings, round):
            left.on_evaluation()
            clock.now += tested or pace * left._test_work()
        left.on_round()
        yield clock.now, left.seconds()


@pytest.mark.parametrize("start", [0, 3])
def test_at_a_constant_pace_the_first_client_tells_the_end(simulation, start):
    estimates = list(play(simulation, start))
    end = estimates[-1][0]
    for now, left in estimates:
        assert left == pytest.approx(end - now, rel=1e-9, abs=1e-9)


def test_a_test_that_takes_longer_is_learned_from_the_first_one(simulation):
    estimates = list(play(simulation, tested=30.0))
    end = estimates[-1][0]
    after_second_round = estimates[2 * 5 - 1]
    assert after_second_round[1] == pytest.approx(end - after_second_round[0], rel=1e-9)
    assert estimates[0][1] < end - estimates[0][0] - 30


def test_what_the_start_of_workers_took_is_forgotten_after_the_second_round(simulation):
    estimates = list(play(simulation, pace=1e-7, first=1000.0))
    end = estimates[-1][0]
    assert estimates[0][1] > 1000
    assert estimates[2 * 5 - 1][1] == pytest.approx(end - estimates[2 * 5 - 1][0], rel=1e-9)


def test_nothing_is_known_before_the_first_client(simulation):
    clock = Clock()
    left = TimeLeft(simulation, 0, clock)
    jobs = jobs_of(simulation, 1)
    left.on_training(Training(jobs))
    clock.now += 88
    left.on_training(Training(jobs, (), jobs[:2]))
    assert (left.seconds(), left.share_done, left.elapsed) == (None, 0.0, 88.0)


def test_clients_that_train_side_by_side_count_as_half_done(simulation):
    clock = Clock()
    left, jobs = TimeLeft(simulation, 0, clock), jobs_of(simulation, 1)
    work = [simulation.costs.macs(job.plan, job.who.samples) for job in jobs]
    left.on_training(Training(jobs))
    left.on_training(Training(jobs, (), jobs[:2]))
    clock.now += 10
    left.on_training(Training(jobs, jobs[:1], jobs[1:2]))
    assert left.share_done == pytest.approx((work[0] + work[1] / 2) / sum(work) / 5)
