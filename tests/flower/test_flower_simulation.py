"""Flower's simulation: the same bytes as on our engine, and clients that do what they should not."""

import json

import pytest
import safetensors.torch
import torch

from nestling.experiment import find, run
from tests.flower.federation import Federation, make_app, needs_flower
from tests.flower.loopback import SETTINGS

pytestmark = [pytest.mark.slow, needs_flower]

CHAOS = """
import time
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from nestling.experiment.flower_apps import client_app
from nestling.flower.flower_api import Array, ArrayRecord, ClientApp, Message


def load_client(context):
    images, labels = load_digits(return_X_y=True)
    own = slice(30 * context.node_config["partition-id"], 30 * context.node_config["partition-id"] + 30)
    return torch.tensor(images[own], dtype=torch.float32).view(-1, 1, 8, 8) / 16, torch.tensor(labels[own])


honest = client_app(Path(__file__).with_name("experiment.toml"), load_client)
app = ClientApp()
app.query()(honest)
app.evaluate()(honest)


@app.train()
def train(message, context):
    client, round = context.node_config["partition-id"], message.metadata.group_id
    if client == 0 and round == "1":
        raise RuntimeError("out of battery")
    if client == 1 and round == "1":
        time.sleep(25)
    reply = honest(message, context)
    arrays = reply.content["nestling.tensors"]
    first = next(name for name in arrays if arrays[name].dtype == "float32")
    if client == 2 and round == "1":
        arrays[first] = Array(np.zeros((1, 2, 3), np.float32))
    if client == 3 and round == "1":
        arrays[first] = Array(np.full(arrays[first].shape, np.nan, np.float32))
    if client == 4 and round == "1":
        arrays["more"] = Array(np.zeros(10**6, np.float32))
    if client == 5:
        name = "remembered"
        if round == "1":
            context.state[name] = ArrayRecord(dict(arrays))
            context.state[name + ".header"] = reply.content["nestling.header"]
        else:
            reply.content["nestling.tensors"] = context.state[name]
            reply.content["nestling.header"] = context.state[name + ".header"]
    return reply
"""
RUNS = ["--federation-config", "num-supernodes=10 client-resources-num-cpus=1"]


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    with Federation(tmp_path_factory.mktemp("simulation"), simulation=True) as federation:
        federation.superlink()
        yield federation


def test_the_same_bytes_as_on_our_engine(federation, tmp_path):
    app = make_app(tmp_path, SETTINGS, {"min-nodes": 10})
    said = federation.complete(app, *RUNS)
    here = tmp_path / "run"
    assert (here / "model.safetensors").exists(), said
    run(find("heterofl-digits").with_settings(SETTINGS), out=tmp_path / "simulated")
    for name in ("model.safetensors", "metrics.jsonl"):
        assert (here / name).read_bytes() == (tmp_path / "simulated" / name).read_bytes(), name


def test_chaos(federation, tmp_path):
    config = {"min-nodes": 10, "deadline": 20.0, "min-replies": 3, "rest": 0, "wait": 60.0}
    app = make_app(tmp_path, [*SETTINGS, "evaluate.every=2"], config, client=CHAOS)
    said = federation.complete(app, *RUNS)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["clients"] for line in lines] == [5, 9], said
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    incidents = {(event["round"], event["kind"], event["message"].split(" is ")[0]) for event in events}
    assert {
        (1, "client failed", "client 0"),
        (1, "client late", "client 1"),
        (1, "update refused", "client 2"),
        (1, "update refused", "client 3"),
        (1, "update refused", "client 4"),
        (2, "update refused", "client 5"),
    } <= incidents, incidents
    assert "client 7: 30 samples" in (tmp_path / "run" / "events.jsonl").read_text()  # its own
    model = safetensors.torch.load_file(tmp_path / "run" / "model.safetensors")
    assert all(torch.isfinite(tensor).all() for tensor in model.values())
