"""Flower's ClientApp of the benchmark, as Flower's own examples and baselines write theirs.

For every message a client builds the model of its level, loads what it was sent, makes a `DataLoader` over its samples
and an optimiser, trains, and returns its state and its loss. What is read of data stays in memory, as it does there.
"""

from __future__ import annotations

import math
from functools import cache

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from bench.rounds.client import fit, training
from bench.rounds.workloads import find, prepare
from nestling.experiment.simulation import Simulation
from nestling.methods.parts.scaler import scale
from nestling.methods.parts.static_norms import make_static
from nestling.nets import MODELS, build

app = ClientApp()


@app.query()
def query(message: Message, context: Context) -> Message:
    """Tell what share of the model's width this device can carry."""
    simulation = simulation_of(message.content["config"])
    return Message(RecordDict({"metrics": MetricRecord({"rate": rate(simulation, context)})}), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    config = message.content["config"]
    simulation = simulation_of(config)
    model = net(simulation, rate(simulation, context))
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    loader = training(simulation, context.node_config["partition-id"], config["server-round"])
    loss = fit(model, loader, simulation.settings.local)
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(loader.dataset)})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)


def net(simulation: Simulation, rate: float) -> nn.Module:
    """The model of a level, of narrower layers from the start, with HeteroFL's Scaler and static norms."""
    settings = simulation.settings.model
    widths = {**MODELS[settings.name].options, **settings.options}["widths"]
    narrow = [math.ceil(rate * math.ceil(settings.width * width)) for width in widths]
    model = build(settings.name, **{**settings.options, "widths": narrow})
    scale(model, simulation.setup.axes, rate)
    make_static(model)
    return model


def rate(simulation: Simulation, context: Context) -> float:
    return simulation.fleet.level(context.node_config["partition-id"], 1).ratio


def simulation_of(config: ConfigRecord) -> Simulation:
    return _prepared(config["workload"], config["quick"])


@cache
def _prepared(workload: str, quick: bool) -> Simulation:
    torch.set_num_threads(1)
    return prepare(find(workload, quick))
