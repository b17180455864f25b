"""Flower's simulation: the same bytes as on our engine, and clients that do what they should not."""

import json
from importlib.util import find_spec

import pytest
import safetensors.torch
import torch

from nestling.experiment import find, run
from tests.flower.federation import ROOT, Federation, make_app, needs_flower
from tests.flower.loopback import SETTINGS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), needs_flower]

CHAOS = """
import time
from dataclasses import replace
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from nestling.experiment.flower_apps import client_app
from nestling.flower.array_codec import encode_tensor
from nestling.flower.flower_api import ClientApp, content_of, packet_in


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
    packet = packet_in(reply.content)
    tensors = dict(packet.tensors)
    first = next(name for name in tensors if tensors[name].dtype == "float32")
    if client == 2 and round == "1":
        tensors[first] = encode_tensor(torch.zeros(1, 2, 3))
    if client == 3 and round == "1":
        tensors[first] = encode_tensor(torch.full(tensors[first].shape, torch.nan))
    if client == 4 and round == "1":
        tensors["more"] = encode_tensor(torch.zeros(10**6))
    reply.content = content_of(replace(packet, tensors=tensors))
    if client == 5:
        if round == "1":
            context.state.update({"remembered " + name: record for name, record in reply.content.items()})
        else:
            for name in list(reply.content):
                reply.content[name] = context.state["remembered " + name]
    return reply
"""
RUNS = ["--federation-config", "num-supernodes=10 client-resources-num-cpus=1"]


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    with Federation(tmp_path_factory.mktemp("simulation"), simulation=True) as federation:
        federation.superlink()
        yield federation


KEPT = ["method=lg-fedavg", "upload.format=topk-8bit", "upload.feedback=true", "model.options.norm=gn"]


@pytest.mark.parametrize("settings", [[], KEPT, ["evaluate.local=own-data", "model.options.norm=gn"]])
def test_the_same_bytes_as_on_our_engines(federation, tmp_path, settings):
    settings = [*SETTINGS, *settings]
    app = make_app(tmp_path, settings, {"min-nodes": 10, "wait": 200.0})
    said = federation.complete(app, *RUNS)
    here = tmp_path / "run"
    assert (here / "model.safetensors").exists(), said
    simulated = find("heterofl-digits").with_settings(settings)
    run(simulated, out=tmp_path / "local")
    engines = ["local"]
    if len(settings) == len(SETTINGS) and find_spec("ray") is not None:
        run(simulated.with_settings(["engine=ray", "workers=2"]), out=tmp_path / "ray")
        engines.append("ray")
    for name in ("model.safetensors", "metrics.jsonl"):
        for engine in engines:
            assert (here / name).read_bytes() == (tmp_path / engine / name).read_bytes(), (engine, name)


def test_the_example_of_three_devices_runs_in_simulation(federation, tmp_path):
    out, settings = tmp_path / "run", "rounds=1 evaluate.every=1"
    three = "num-supernodes=3 client-resources-num-cpus=1"
    keys = f'out="{out}" settings="{settings}"'
    said = federation.complete(ROOT / "examples" / "flower" / "app", "--federation-config", three, "-c", keys)
    (line,) = [json.loads(text) for text in (out / "metrics.jsonl").read_text().splitlines()]
    assert line["clients"] == 3, said


def test_chaos(federation, tmp_path):
    config = {"min-nodes": 10, "deadline": 20.0, "min-replies": 3, "rest": 0, "wait": 200.0}
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
