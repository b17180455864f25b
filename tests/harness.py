"""The one place in the tests that knows how an experiment is put together from its parts."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn

import nestling
from nestling.axes import AxisMap
from nestling.client.grouped.group_worker import GroupWorker
from nestling.cut import Plan
from nestling.engines import LocalEngine
from nestling.experiment.simulation import Overrides, simulate
from nestling.experiment.simulator import Simulator
from nestling.fleet.levels import parse_level
from nestling.methods import Method, Participant, PlanPart, RoundContext, Setup
from nestling.methods.context import ClientContext
from nestling.methods.messages import JobEnvelope, TrainJob
from nestling.seeds import derive
from nestling.server.state import ServerState
from nestling.tasks import Classification
from nestling.tasks.task import OutputMask

NO_AXES = AxisMap({}, {}, {}, {})
PLAIN = Method("plain", PlanPart())


class Nameless(nn.Module):
    """A model whose state has the names of some axes, for methods that look at names alone."""

    def __init__(self, axes):
        super().__init__()
        self._names = list(axes.dims)

    def named_parameters(self, *_, **__):
        return ((name, nn.Parameter(torch.zeros(1))) for name in self._names)


def setup_of(model=None, axes=NO_AXES, method=PLAIN, *, classes=10, example=None, **settings):
    """The setup of a model for a method; by default every tensor is a parameter."""
    model = Nameless(axes) if model is None else model
    example = torch.zeros(2, 1) if example is None else example
    task = Classification(classes, settings.get("accelerate", True))
    return Setup(model, axes, example, task, method, **settings)


def plan_of(method, axes, ratio=0.5, round=1, client=0, seed=0, model=None):
    """The slice that a client trains in a round."""
    setup = setup_of(model, axes, method)
    state = method.init(setup, derive(seed, "notes"))
    level = SimpleNamespace(name="x", ratio=ratio)  # a `Level` refuses ratios that plans must refuse, too
    who = Participant(client, level, seed=derive(seed, "plan", round, client))
    return method.client_plan(RoundContext(setup, round, 0.1, {}, state), who)


def submodel_plan_of(method, axes, ratio=0.5, seed=0, model=None):
    """The sub-model of a level that is tested."""
    setup = setup_of(model, axes, method)
    return method.plan.submodel_plan(setup, method.init(setup, derive(seed, "notes")), ratio)


def client_of(model, axes=NO_AXES, *, method=PLAIN, plan=None, ratio=1.0, held=None, seed=0, **more):
    """A client in training, with a model of its own."""
    settings = {name: more.pop(name) for name in ("training", "ratios", "accelerate", "classes") if name in more}
    mask = None if held is None else OutputMask(held)
    draw = more.pop("draw", None) or np.random.default_rng(seed)
    setup = setup_of(model, axes, method, **settings)
    return ClientContext(setup, model, Plan() if plan is None else plan, ratio, mask=mask, draw=draw, **more)


def slice_of(net, axes, ratio=1.0, *, plan=None, **more):
    """A client that trains a slice of a net."""
    plan = nestling.plan(axes, ratio) if plan is None else plan
    return client_of(nestling.submodel(net, axes, plan).train(), axes, plan=plan, ratio=ratio, **more)


def loss_of(client, inputs, targets):
    """The loss of a client on a batch, by its method."""
    return client.setup.method.loss(client)((inputs, targets))


def worker_of(simulation, *device):
    return GroupWorker(simulation.setup, simulation.data, *device, public=simulation.public_at_clients)


def engine_of(simulation, workers=1):
    public = simulation.public_at_clients
    return LocalEngine(partial(GroupWorker, simulation.setup, simulation.data, public=public), workers)


def train_job(simulation, client, ratio, plan=None, state=None, *, round=1, lr=0.1):
    """The job of a client, and all that it needs: by default its own slice of the model as it begins."""
    setup, server = simulation.setup, ServerState.start(simulation.setup)
    drawn = simulation.participant(client, round)
    who = Participant(client, parse_level(ratio), drawn.samples, drawn.seed, drawn.held)
    plan = setup.method.client_plan(server.context(setup, number=round), who) if plan is None else plan
    state = server.download(setup, plan) if state is None else state
    return JobEnvelope(TrainJob(who, plan, round, lr), state)


def rounds_of(experiment, **own):
    """The simulation, the states after each of its rounds, and what ran them, all in this process."""
    simulation = simulate(Overrides(experiment, **own))
    simulator, states = Simulator(simulation), [ServerState.start(simulation.setup)]
    for _ in range(experiment.rounds):
        states.append(simulator.run_round(states[-1])[0])
    return simulation, states, simulator
