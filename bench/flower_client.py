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
from nestling.experiment.setting import Setting
from nestling.methods.parts.scaler import scale
from nestling.methods.parts.static_norms import make_static
from nestling.nets import MODELS, build

app = ClientApp()


@app.query()
def query(message: Message, context: Context) -> Message:
    """Tell what share of the model's width this device can carry."""
    made = setting(message.content["config"])
    return Message(RecordDict({"metrics": MetricRecord({"rate": rate(made, context)})}), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    config = message.content["config"]
    made = setting(config)
    model = net(made, rate(made, context))
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    loader = training(made, context.node_config["partition-id"], config["server-round"])
    loss = fit(model, loader, made.experiment.local)
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(loader.dataset)})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)


def net(made: Setting, rate: float) -> nn.Module:
    """The model of a level, of narrower layers from the start, with HeteroFL's Scaler and static norms."""
    settings = made.experiment.model
    widths = {**MODELS[settings.name].options, **settings.options}["widths"]
    narrow = [math.ceil(rate * math.ceil(settings.width * width)) for width in widths]
    model = build(settings.name, **{**settings.options, "widths": narrow})
    scale(model, made.axes, rate)
    make_static(model)
    return model


def rate(made: Setting, context: Context) -> float:
    return made.level(context.node_config["partition-id"], 1).ratio


def setting(config: ConfigRecord) -> Setting:
    return _prepared(config["workload"], config["quick"])


@cache
def _prepared(workload: str, quick: bool) -> Setting:
    torch.set_num_threads(1)
    return prepare(find(workload, quick))
