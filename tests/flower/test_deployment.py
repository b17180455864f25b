"""Real devices on loopback: TLS and node keys, and processes that die."""

import json
import signal

import pytest

from tests.flower.federation import (
    LIMIT,
    Federation,
    certificates,
    make_app,
    needs_flower,
    node_key,
    rounds_in,
    wait_for_rounds,
)
from tests.processes import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2500), needs_flower]
SMALL = ["group_clients=off", "fleet.clients=3", "fleet.per_round=3", "local.epochs=1", "data.max_samples=600"]
SMALL += ["model.width=0.5", "evaluate.samples=100"]
PLAIN = [*SMALL, "model.options.norm=gn", "fleet.levels=a-c"]  # every message takes seconds: these norms need none


def events(run):
    return [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]


def test_three_devices_with_certificates_and_keys(tmp_path):
    tls = certificates(tmp_path / "tls")
    wrong = certificates(tmp_path / "wrong")
    keys = {name: node_key(tls, name) for name in ("node0", "node1", "node2", "stranger")}
    with Federation(tmp_path / "federation", tls=tls) as federation:
        federation.superlink("--enable-supernode-auth")
        for name in ("node0", "node1", "node2"):
            code, out = federation.flwr("supernode", "register", f"{keys[name]}.pub", "here")
            assert code == 0, out
        for client in range(3):
            federation.supernode(client, "--auth-supernode-private-key", str(keys[f"node{client}"]))
        federation.supernode(0, "--auth-supernode-private-key", str(keys["stranger"]), name="stranger")
        mistrusting = ("--root-certificates", str(wrong / "ca.crt"), "--max-retries", "1")
        federation.supernode(1, *mistrusting, "--auth-supernode-private-key", str(keys["node1"]), name="mistrusting")
        config = {"min-nodes": 3, "deadline": 120.0}
        heterofl = make_app(tmp_path / "heterofl", [*PLAIN, "rounds=2"], config)
        said = federation.complete(heterofl)
        lines = rounds_in(tmp_path / "heterofl" / "run")
        assert [line["clients"] for line in lines] == [3, 3], said
        assert lines[1]["train_loss"] < lines[0]["train_loss"]
        assert len(lines[0]["levels"]) == 2
        nefl = make_app(tmp_path / "nefl", [*SMALL, "rounds=1"], config, preset="nefl-digits")
        said = federation.complete(nefl)
        assert [line["clients"] for line in rounds_in(tmp_path / "nefl" / "run")] == [3], said
        for refused in ("stranger", "mistrusting"):
            assert "Connection attempt failed" in federation.log(refused)
            assert "SuperNode ID" not in federation.log(refused)
        assert all("SuperNode ID" in federation.log(f"node{client}") for client in range(3))


def test_processes_that_die(tmp_path):
    run = tmp_path / "app" / "run"
    config = {"min-nodes": 2, "deadline": 150.0, "wait": 400.0}  # a busy machine is slow to start a process
    app = make_app(tmp_path / "app", [*PLAIN, "rounds=4"], config)
    with Federation(tmp_path / "federation") as federation:
        federation.superlink()
        for client in range(3):
            federation.supernode(client)
        first = federation.begin(app)
        wait_for_rounds(run, 1)
        federation.kill("node2")  # in round 2
        wait_for_rounds(run, 2)
        assert rounds_in(run)[1]["clients"] == 2
        lost = [event for event in events(run) if "client 2 " in event["message"] and event["round"] == 2]
        assert [event["kind"] for event in lost] in (["client late"], ["client failed"], ["client unreachable"])

        federation.kill_server_app()  # in round 3
        before = (run / "metrics.jsonl").read_bytes()
        wait_until(lambda: federation.finished(first), 90)
        assert federation.finished(first) == "failed"
        federation.begin(app)
        wait_for_rounds(run, before.count(b"\n") + 1)
        assert (run / "metrics.jsonl").read_bytes().startswith(before)

        federation.kill("superlink")  # in the round after that
        before = (run / "metrics.jsonl").read_bytes()
        federation.superlink()  # the nodes find it again
        said = federation.complete(app)
    assert (run / "metrics.jsonl").read_bytes().startswith(before), said
    lines = rounds_in(run)
    assert [line["round"] for line in lines] == [1, 2, 3, 4], said
    assert min(line["clients"] for line in lines) >= 1
    assert (run / "summary.json").exists()


def test_what_a_node_keeps_in_its_folder_survives_its_restart(tmp_path):
    run = tmp_path / "app" / "run"
    kept = ["method=lg-fedavg", "fleet.levels=a", "fleet.clients=2", "fleet.per_round=2", "rounds=3"]
    config = {"min-nodes": 2, "deadline": 120.0, "wait": 200.0, "rest": 0}
    app = make_app(tmp_path / "app", [*PLAIN, *kept], config)
    folders = [tmp_path / f"kept{client}" for client in range(2)]
    with Federation(tmp_path / "federation") as federation:
        federation.superlink()
        for client, folder in enumerate(folders):
            federation.supernode(client, config=f"folder='{folder}'")
        first = federation.begin(app)
        wait_for_rounds(run, 1)
        federation.kill("node1", signal.SIGTERM)
        federation.supernode(1, config=f"folder='{folders[1]}'")
        wait_until(lambda: federation.finished(first), LIMIT)
        assert federation.finished(first) == "completed", federation.log("superlink")[-3000:]
    lines = rounds_in(run)
    assert lines[-1]["clients"] == 2
    assert lines[-1]["evaluation"]["global_accuracy"] is not None  # the mean of both devices' own models
    assert "kept state lost" not in {event["kind"] for event in events(run)}
    (own,) = folders[1].iterdir()
    assert "round-000003.kept" in {path.name for path in own.iterdir()}
