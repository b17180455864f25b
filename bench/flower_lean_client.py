"""Flower's ClientApp of the benchmark, lean: a client takes its slice, trains it, and sends it back.

A module of its own, so that Flower's actors import it instead of unpickling it with every message: what they built and
read once, they keep.
"""

from __future__ import annotations

from functools import cache

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from bench.rounds.floor import bare, steps
from bench.rounds.workloads import find, prepare, read
from nestling.experiment.simulation import Simulation

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    config = message.content["config"]
    simulation = simulation_of(config["workload"], config["quick"])
    net = model(config["workload"], config["quick"], config["ratio"])
    net.load_state_dict(message.content["slice"].to_torch_state_dict())
    steps(net, read(simulation, config["client"], config["round"]), simulation.settings.local)
    content = RecordDict({"slice": ArrayRecord(net.state_dict()), "config": ConfigRecord({"client": config["client"]})})
    return Message(content, reply_to=message)


@cache
def simulation_of(workload: str, quick: bool) -> Simulation:
    torch.set_num_threads(1)
    return prepare(find(workload, quick))


@cache
def model(workload: str, quick: bool, ratio: float) -> nn.Module:
    return bare(simulation_of(workload, quick), ratio)
