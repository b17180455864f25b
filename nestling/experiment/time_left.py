"""`TimeLeft`: an estimate of how long a run still takes, from its first client on."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from nestling.experiment.callback import Training
from nestling.experiment.simulation import Simulation

_WINDOW = 20  # rounds whose pace counts


class TimeLeft:
    """Estimates the seconds that a run still takes.

    Work is counted in multiply-accumulates of training, by which clients of all sizes compare. A client that is still
    training counts as half done. The first round also starts the workers, so it counts only until there is a second.
    Before the first test of models, a test is assumed to be as fast as training.

    Parameters
    ----------
    simulation
        The experiment.
    done
        The number of rounds that are done.
    clock
        Returns the time in seconds.
    """

    def __init__(self, simulation: Simulation, done: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._simulation, self._clock = simulation, clock
        self._round = done
        self._began = self._mark = clock()  # of the run, and of the round or test that is going on
        self._paces: deque[tuple[float, float]] = deque(maxlen=_WINDOW)  # work and seconds of rounds
        self._tests: deque[float] = deque(maxlen=_WINDOW)  # seconds
        self._works: dict[int, float] = {}  # client → its work in this round
        self._share = 0.0  # of the work of this round
        self._rounds_seen = 0
        self._testing = False

    @property
    def elapsed(self) -> float:
        """Seconds since the run was started or resumed."""
        return self._clock() - self._began

    @property
    def share_done(self) -> float:
        """The share of all rounds that is done."""
        return min(1.0, (self._round + self._share) / self._simulation.settings.rounds)

    def on_training(self, training: Training) -> None:
        """Count what is done of the clients of a round."""
        if not (training.done or training.now):  # the round begins
            costs = self._simulation.costs
            self._works = {job.who.client: costs.macs(job.plan, job.who.samples) for job in training.jobs}
        done = sum(self._works[job.who.client] for job in training.done)
        if done:
            done += sum(self._works[job.who.client] for job in training.now) / 2
        self._share = done / max(1.0, sum(self._works.values()))

    def on_evaluation(self) -> None:
        """Stop counting for the clients of a round, and start for its test."""
        self._end_of_training()
        self._testing = True

    def on_round(self) -> None:
        """Count a round."""
        if self._testing:
            self._tests.append(self._clock() - self._mark)
            self._mark = self._clock()
        else:
            self._end_of_training()
        self._testing, self._share = False, 0.0
        self._round += 1

    def seconds(self) -> float | None:
        """Return the seconds that are left; None before the first client is done."""
        settings, total = self._simulation.settings, sum(self._works.values())
        now = self._clock() - self._mark
        paces = [*self._paces, *([(self._share * total, now)] if self._share and not self._testing else [])]
        work, spent = sum(work for work, _ in paces), sum(seconds for _, seconds in paces)
        if not work:
            return None
        rounds = max(0.0, settings.rounds - self._round - (1 if self._testing else self._share))
        per_round = sum(work for work, _ in self._paces) / len(self._paces) if self._paces else total
        every = settings.evaluate.every
        tests = settings.rounds // every - self._round // every + (settings.rounds % every > 0)
        test = sum(self._tests) / len(self._tests) if self._tests else self._test_work() * spent / work
        tests = tests if self._round < settings.rounds else 0
        left = rounds * per_round * spent / work + tests * test
        return max(0.0, left - (min(now, test) if self._testing else 0.0))

    def _end_of_training(self) -> None:
        if self._rounds_seen == 1:
            self._paces.clear()
        self._rounds_seen += 1
        self._paces.append((sum(self._works.values()), self._clock() - self._mark))
        self._mark = self._clock()

    def _test_work(self) -> float:
        """Return the multiply-accumulates of a test of all sub-models."""
        simulation, setup = self._simulation, self._simulation.setup
        costs = [simulation.costs.cost(setup.submodel_plan(ratio)) for ratio in simulation.levels.values()]
        return sum(cost.macs for cost in costs) / simulation.settings.local.batch_size * len(simulation.data.test)
