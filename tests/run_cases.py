"""Small experiments for tests: real data (scikit-learn's digits), seconds each."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from dataclasses import dataclass
from pathlib import Path

import torch

from nestling.client.grouped.group_worker import GroupWorker
from nestling.experiment import resume, run
from nestling.experiment.simulation import simulate
from nestling.methods import Part
from nestling.methods.messages import GroupJob, TrainJob
from nestling.settings import Data, Evaluate, Experiment, FleetSettings, LocalTraining, Model

# Methods whose server needs samples without labels.
WITH_PUBLIC = ("fedmorph", "fedmorphprox", "feddf", "ds-fl", "fed-et")

# What makes METHOD-digits of these learn in a few seconds.
LEARNING = [
    "fleet.clients=5",
    "fleet.per_round=5",
    "fleet.levels=a-c",
    "model.options.widths=[16, 32, 32]",
    "rounds=3",
    "evaluate.every=3",
    "evaluate.samples=200",
]


def small(**changes):
    """Eight clients of three levels, four of them a round, on a narrow net."""
    settings = {
        "method": "heterofl",
        "rounds": 3,
        "model": Model(name="cnn", options={"widths": [8, 16, 16, 16]}),
        "data": Data(name="digits", max_samples=400),
        "fleet": FleetSettings(clients=8, per_round=4, levels="a-b-d"),
        "local": LocalTraining(lr=0.05, epochs=1, batch_size=20),
        "evaluate": Evaluate(every=2, samples=100, norm_batch=50),
        "group_clients": "off",  # finding out what can train together takes as long as the training here
    }
    return Experiment(**{**settings, **changes})


def begin_or_go_on(folder):
    """Start a run of twelve rounds, or go on with it: for children that are killed."""
    if (folder / "config.toml").exists():
        resume(folder)
    else:
        run(small(method="standalone", rounds=12, checkpoint_every=2), out=folder)


def tiny(**changes):
    """Four clients of two levels, two of them a round, on a net that takes no time: for tests of files."""
    settings = {
        "model": Model(name="cnn", options={"widths": [4, 4]}),
        "data": Data(name="digits", max_samples=80),
        "fleet": FleetSettings(clients=4, per_round=2, levels="a-b"),
        "evaluate": Evaluate(every=2, samples=20),
    }
    return small(**{**settings, **changes})


def same_state(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def outcome(folder):
    """What a run directory tells, apart from what depends on the clock and the machine."""
    summary = json.loads(Path(folder, "summary.json").read_text())
    for name in ("seconds", "events", "workers_lost"):
        summary.pop(name)
    return Path(folder, "metrics.jsonl").read_bytes(), summary, Path(folder, "model.safetensors").read_bytes()


@dataclass(frozen=True)
class Deadly(Part):
    """A loss that once, in the middle of a round, kills the process that computes it; `path` is written before."""

    path: str

    def loss(self, client, batch, inner):
        if not Path(self.path).exists() and client.round == 1 and client.ratio < 1:
            Path(self.path).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return inner(batch)


class Fatal(GroupWorker):
    """A worker that ends its process, unless that is the main one, when it is given a job of some kind.

    That is one which trains a certain client, or more clients than so many at once, or is of a certain type.
    """

    def __init__(self, overrides, client=None, most=100, kinds=(), log=os.devnull):
        simulation = simulate(overrides)
        super().__init__(simulation.setup, simulation.data)
        self._fatal, self._most, self._kinds, self._log = client, most, kinds, log

    def __call__(self, envelope):
        jobs = [one.job for one in (envelope.envelopes if isinstance(envelope, GroupJob) else [envelope])]
        trained = [job.who.client for job in jobs if isinstance(job, TrainJob)]
        kinds = {type(job).__name__ for job in jobs}
        if self._fatal in trained or len(jobs) > self._most or kinds & set(self._kinds):
            with open(self._log, "a") as log:
                log.write(f"{len(jobs)} ")
            if multiprocessing.parent_process() is not None:
                os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(envelope)
