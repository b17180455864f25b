"""Rounds over real messages: the same numbers as in simulation, and none of the harm that a client can do."""

import json
import os
import sys
from dataclasses import replace

import pytest
import torch

from nestling.errors import ConfigError, RunError, RunFailed
from nestling.experiment import find, resume, run
from nestling.experiment.device_run import run_on_devices
from nestling.flower.array_codec import encode_tensor
from nestling.flower.node_worker import NodeConfig
from nestling.flower.nodes import RoundRules
from tests.flower.loopback import Loopback, Silent, experiment
from tests.processes import call

RULES = RoundRules(poll=0.01, wait=0.2, deadline=60.0)


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def events(folder):
    lines = (folder / "events.jsonl").read_text().splitlines() if (folder / "events.jsonl").exists() else []
    return [(event["kind"], event["message"]) for event in map(json.loads, lines)]


@pytest.mark.parametrize(
    "settings",
    [
        [],
        slow(["data.partition=classes", "data.classes_per_client=3"]),
        slow(["method=fedrolex", "fleet.assign=dynamic"]),
        slow(["upload.format=topk-8bit", "upload.feedback=true"]),
        slow(["method=fedavg", "parts=feddyn:0.1"]),
        slow(["select_rows=true", "data.partition=classes", "data.classes_per_client=3"]),
        slow(["model.options.norm=bn", "server.optimizer=fedadam", "server.lr=0.01"]),
        slow(["evaluate.local=own-data", "data.partition=classes", "data.classes_per_client=3"]),
        slow(["evaluate.local=own-data", "model.options.norm=bn"]),
        slow(["method=lg-fedavg", "data.partition=classes", "data.classes_per_client=3"]),
        slow(["method=lg-fedavg", "upload.format=topk-8bit", "upload.feedback=true", "model.options.norm=bn"]),
        slow(["method=standalone", "fleet.per_round=4", "fleet.assign=dynamic"]),
        slow(["method=lg-fedavg", "parts=median"]),
    ],
)
def test_the_same_bytes_as_in_simulation(tmp_path, settings):
    settings = experiment(*settings)
    simulated = run(settings, out=tmp_path / "simulated")
    link = Loopback(settings, settings.fleet.clients)
    deployed = run_on_devices(settings, link, RULES, out=tmp_path / "deployed", own_data=False)
    assert same(simulated.state, deployed.state)
    assert simulated.rounds == deployed.rounds


@pytest.mark.slow
def test_replies_in_any_order_give_nearly_the_same(tmp_path):
    settings = experiment()
    link = Loopback(settings, 10)
    rules = replace(RULES, merge_order="arrival", window=3)
    result = run_on_devices(settings, link, rules, out=tmp_path / "run")
    simulated = run(settings)
    assert all(torch.allclose(value, simulated.state[name], atol=1e-4) for name, value in result.state.items())
    assert result.rounds[0]["clients"] == 10
    assert result.rounds[-1]["evaluation"]["local_accuracy"] is None  # the samples of clients are not the server's


def raises(_request, _packet):
    raise ValueError("out of\n battery")


@pytest.fixture(scope="module")
def without_client_4(tmp_path_factory):
    settings, folder = experiment("rounds=1"), tmp_path_factory.mktemp("alone") / "run"
    return run_on_devices(settings, Loopback(settings, 10, {4: raises}), RULES, out=folder, own_data=False)


def silent(_request, _packet):
    raise Silent


def with_tensors(change):
    def fault(_request, packet):
        tensors = dict(packet.tensors)
        change(tensors)
        return replace(packet, tensors=tensors)

    return fault


def wrong_shape(tensors):
    name = next(iter(tensors))
    tensors[name] = encode_tensor(torch.zeros(1, 2, 3))


def not_a_number(tensors):
    name, part = next((name, part) for name, part in tensors.items() if part.dtype == "float32")
    tensors[name] = encode_tensor(torch.full(part.shape, torch.nan))


def missing(tensors):
    tensors.pop(next(iter(tensors)))


def other_dtype(tensors):
    name, part = next(iter(tensors.items()))
    tensors[name] = encode_tensor(torch.zeros(part.shape, dtype=torch.float64))


def extra(tensors):
    tensors["evil"] = encode_tensor(torch.zeros(1))


def large(tensors):
    tensors["evil"] = encode_tensor(torch.zeros(10**6))


def huge_values(tensors):
    for name, part in tensors.items():
        if part.dtype == "float32":
            tensors[name] = encode_tensor(torch.full(part.shape, 1e3))


def header(change):
    def fault(_request, packet):
        fields = json.loads(packet.header)
        change(fields)
        return replace(packet, header=json.dumps(fields))

    return fault


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        slow(raises, "client failed", "ValueError: out of battery"),
        slow(silent, "client late", "did not reply in 1 s"),
        (with_tensors(wrong_shape), "update refused", "has shape (1, 2, 3)"),
        (with_tensors(not_a_number), "update refused", "not finite"),
        slow(with_tensors(missing), "update refused", "lacks the tensor"),
        slow(with_tensors(other_dtype), "update refused", "is of type 'float64'"),
        slow(with_tensors(extra), "update refused", "was not asked for"),
        slow(with_tensors(large), "update refused", "more than the"),
        slow(with_tensors(huge_values), "update refused", "times the median"),
        (header(lambda fields: fields.update(ticket="another")), "update refused", "another job"),
        slow(header(lambda fields: fields.update(version="0.0.1")), "update refused", "Nestling '0.0.1'"),
        slow(header(lambda fields: fields.update(plan="another")), "update refused", "not of"),
        slow(header(lambda fields: fields.update(loss=None)), "update refused", "loss is not a finite"),
        slow(header(lambda fields: fields.update(samples=-1)), "update refused", "not a Trained message"),
        slow(header(lambda fields: fields.update(rows='{"axes": {"x": [[0, 1]]}}')), "update refused", "rows of axes"),
        slow(lambda _request, packet: replace(packet, blob=b"1234"), "update refused", "compressed upload"),
    ],
)
def test_a_client_that_sends_anything_else_is_left_out(tmp_path, without_client_4, fault, kind, words):
    settings = experiment("rounds=1")
    link = Loopback(settings, 10, {4: fault})
    rules = replace(RULES, deadline=1.0 if fault is silent else 60.0)
    result = run_on_devices(settings, link, rules, out=tmp_path / "run", own_data=False)
    assert (result.rounds[0]["clients"], result.rounds[0]["dropped"]) == (9, 1)
    of_client = [message for event, message in events(tmp_path / "run") if event == kind]
    assert len(of_client) == 1
    assert "client 4" in of_client[0]
    assert words in of_client[0]
    assert same(result.state, without_client_4.state)  # nothing of it touched the sum


@pytest.mark.slow
def test_a_reply_is_merged_once_whoever_sends_it_again(tmp_path):
    settings = experiment("rounds=2")
    link, replies = Loopback(settings, 10), []

    def remember(request, packet):
        """Answer the job of round 1, and every later one with that answer again."""
        replies.append(packet)
        return replies[0]

    link.faults[2] = remember
    result = run_on_devices(settings, link, replace(RULES, rest=0), out=tmp_path / "run")
    assert [line["clients"] for line in result.rounds] == [10, 9]
    assert any("another job" in message for _, message in events(tmp_path / "run"))


@pytest.mark.slow
@pytest.mark.parametrize("order", ["jobs", "arrival"])
def test_early_replies_wait_and_no_more_of_them_than_the_window(tmp_path, order):
    settings = experiment("rounds=1", "fleet.levels=a")
    link, asked = Loopback(settings, 10, {0: silent}), []
    pull = link.pull

    def pulling(requests):
        asked.append(len(requests))
        return pull(requests)

    link.pull = pulling
    rules = replace(RULES, merge_order=order, window=3, deadline=4.0)
    result = run_on_devices(settings, link, rules, out=tmp_path / "run", own_data=False)
    assert result.rounds[0]["clients"] == 9
    assert max(asked[1:]) <= 3  # the first asks everybody for an introduction
    held = [message for kind, message in events(tmp_path / "run") if kind == "replies held back"]
    assert len(held) == (1 if order == "jobs" else 0)
    assert order == "arrival" or held[0].startswith(
        "2 replies, as many as the window holds, and all later ones wait for"
    )


@pytest.mark.slow
def test_clients_that_failed_rest(tmp_path):
    settings = experiment("rounds=4", "evaluate.every=4")
    result = run_on_devices(settings, Loopback(settings, 10, {0: raises}), replace(RULES, rest=2), out=tmp_path / "run")
    assert [sum(line["levels"].values()) for line in result.rounds] == [10, 9, 9, 10]


@pytest.mark.slow
def test_a_round_with_too_few_updates_is_thrown_away(tmp_path):
    settings = experiment("rounds=1")
    faults = dict.fromkeys(range(8), raises)
    with pytest.raises(RunFailed, match=r"round 1 failed 2 times; the last time, 2 of 10 clients sent an update"):
        run_on_devices(
            settings, Loopback(settings, 10, faults), replace(RULES, min_replies=3, tries=2), out=tmp_path / "run"
        )
    link = Loopback(settings, 10)
    tried = []

    def once(_request, packet):
        tried.append(packet)
        if len(tried) == 1:
            raise ValueError("once")
        return packet

    link.faults[3] = once
    result = run_on_devices(
        settings, link, replace(RULES, min_replies=10, rest=0), out=tmp_path / "run", own_data=False
    )
    assert same(result.state, run(settings).state)


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["none", "bn"])
def test_honest_devices_of_all_sizes_are_near_the_median_norm(tmp_path, norm):
    """The change per value of level e is four times that of the median."""
    sizes = ["fleet.levels=a-b-c-d-e", "model.width=1.0", f"model.options.norm={norm}"]
    settings = experiment(*sizes, "evaluate.every=2")
    result = run_on_devices(settings, Loopback(settings, 10), replace(RULES, norm_bound=2.0), out=tmp_path / "run")
    assert [line["clients"] for line in result.rounds] == [10, 10], events(tmp_path / "run")


@pytest.mark.slow
def test_coverage_is_what_a_round_trained(tmp_path):
    settings = experiment("rounds=1")
    configs = {client: NodeConfig(client, level="c") for client in range(10)}
    with pytest.raises(RunFailed, match=r"trained \d+% of the axis"):
        run_on_devices(
            settings, Loopback(settings, 10, configs=configs), replace(RULES, min_coverage=0.9), out=tmp_path / "run"
        )


@pytest.mark.slow
def test_levels_are_what_devices_carry(tmp_path):
    settings = experiment("rounds=1", "fleet.levels=a-b-e")
    configs = {0: NodeConfig(0, level="e"), 1: NodeConfig(1, memory="1 kB")}
    result = run_on_devices(settings, Loopback(settings, 10, configs=configs), RULES, out=tmp_path / "run")
    assert sum(result.rounds[0]["levels"].values()) == 9  # client 1 carries nothing
    assert any(kind == "client too small" and "client 1 " in message for kind, message in events(tmp_path / "run"))


@pytest.mark.slow
def test_devices_that_are_missing(tmp_path):
    settings = experiment("rounds=1", "fleet.per_round=5")
    link = Loopback(settings, 10)
    link.online = link.online[6:]
    result = run_on_devices(settings, link, RULES, out=tmp_path / "run")
    assert result.rounds[0]["clients"] == 4
    link.online = []
    with pytest.raises(RunFailed, match="only 0 of the 1 devices"):
        run_on_devices(settings, link, RULES, out=tmp_path / "nobody")


@pytest.mark.slow
def test_runs_move_between_simulation_and_devices(tmp_path):
    settings = experiment("rounds=3")
    once = run(settings, out=tmp_path / "once")
    run(settings.with_settings(["rounds=1"]), out=tmp_path / "run")
    link = Loopback(settings, 10)
    run_on_devices(settings.with_settings(["rounds=2"]), link, RULES, out=tmp_path / "run", own_data=False)
    moved = resume(tmp_path / "run", rounds=3)
    assert same(once.state, moved.state)
    assert once.rounds == moved.rounds


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs POSIX limits")
def test_a_disk_that_is_full_at_a_checkpoint_leaves_the_last_good_one(tmp_path):
    """A limit on file size, from the second round on, stands for a disk that is full."""
    code = (
        "import resource, signal, sys\n"
        "from nestling.experiment.callback import Callback\n"
        "from nestling.experiment.device_run import run_on_devices\n"
        "from tests.flower.loopback import Loopback, experiment\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "class Full(Callback):\n"
        "    def on_round(self, line, state):\n"
        "        if line['round'] == 2: resource.setrlimit(resource.RLIMIT_FSIZE, (9000, resource.RLIM_INFINITY))\n"
        "settings = experiment('rounds=3')\n"
        "run_on_devices(settings, Loopback(settings, 10), out=sys.argv[1], own_data=False, callbacks=[Full()])\n"
    )
    here = tmp_path / "run"
    done = call([sys.executable, "-c", code, str(here)])
    assert done.returncode != 0
    assert "disk" in done.stderr or "File too large" in done.stderr, done.stderr
    assert [path.name for path in (here / "checkpoints").glob("round-*")] == ["round-000001"]
    settings = experiment("rounds=3")
    result = run_on_devices(settings, Loopback(settings, 10), RULES, out=here, own_data=False)
    whole = run(settings)
    assert same(result.state, whole.state)
    assert result.rounds == whole.rounds


@pytest.mark.slow
def test_what_clients_keep_stays_where_it_is(tmp_path):
    settings = experiment("method=fedavg", "parts=feddyn:0.1", "rounds=1")
    run(settings, out=tmp_path / "simulated")
    more = settings.with_settings(["rounds=2"])
    with pytest.raises(RunError, match="from its simulation: go on in simulation"):
        run_on_devices(more, Loopback(settings, 10), RULES, out=tmp_path / "simulated")
    run_on_devices(settings, Loopback(settings, 10), RULES, out=tmp_path / "devices")
    with pytest.raises(RunError, match="which is on the devices that trained"):
        resume(tmp_path / "devices", rounds=2)


@pytest.mark.slow
def test_a_node_that_lost_what_it_kept_is_reported(tmp_path):
    settings = experiment("method=fedavg", "parts=feddyn:0.1", "rounds=2")
    link = Loopback(settings, 10)

    def forget(request, packet):
        if request.round == 1:
            link.memories[request.node].clear()
        return packet

    link.faults[5] = forget
    run_on_devices(settings, link, RULES, out=tmp_path / "run")
    assert [kind for kind, message in events(tmp_path / "run") if "client 5 began" in message] == ["kept state lost"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (experiment("method=ds-fl", "data.public_share=0.2"), "exchanges predictions of public samples"),
        (find("fedavg-words").with_settings(["method=lg-fedavg"]), "not on .*-word: run it in simulation"),
    ],
)
def test_methods_that_devices_do_not_do_are_refused(tmp_path, settings, words):
    with pytest.raises(ConfigError, match=words):
        run_on_devices(settings, None, RULES, out=tmp_path / "run")
    settings = experiment("method=fedavg", "parts=secagg", "model.options.norm=gn")
    with pytest.raises(ConfigError, match="secagg needs four messages with every client"):
        run_on_devices(settings, None, RULES, out=tmp_path / "other")


@pytest.mark.slow
def test_clients_are_tested_on_samples_that_only_they_have(tmp_path):
    """The server knows counts alone; a device that lies or is silent is left out of the mean."""
    few = ["fleet.clients=5", "fleet.per_round=5", "model.options.norm=none"]
    settings = experiment("rounds=1", "evaluate.every=1", "evaluate.local=own-data", *few)
    link = Loopback(settings, 5, {1: header(lambda fields: fields.update(right=10**6)), 2: silent, 3: raises})
    link.faulty = {"evaluate"}
    result = run_on_devices(settings, link, replace(RULES, deadline=5.0), out=tmp_path / "run")
    simulated = run(settings)
    of_clients, expected = (one.summary["local"] for one in (result, simulated))
    assert of_clients == {client: expected[client] for client in ("0", "4")}
    said = [(kind, message) for kind, message in events(tmp_path / "run") if kind.startswith("answer")]
    assert len(said) == 3
    assert any("it says that 1000000 of" in message for _, message in said)
    assert any("out of battery" in message for _, message in said)
    assert any("client 2 has given no results on its own samples in 5 s" in message for _, message in said)


def test_nodes_that_do_not_belong_are_refused_by_name(tmp_path):
    settings = experiment("rounds=1")
    old = header(lambda fields: fields.update(version="0.0.1"))
    link = Loopback(settings, 10, {7: old}, configs={3: NodeConfig(2), 5: NodeConfig(11)})
    link.faulty = {"query"}
    result = run_on_devices(settings, link, RULES, out=tmp_path / "run")
    refused = [message for kind, message in events(tmp_path / "run") if kind == "node refused"]
    assert len(refused) == 3
    assert "node 107 is refused: it comes from Nestling '0.0.1'" in refused[2]
    assert "node 103 is refused: it says that it is client 2, which the node 102 is" in refused[0]
    assert "fleet.clients is 10" in refused[1]
    assert result.rounds[0]["clients"] == 7
    other = Loopback(experiment("rounds=1", "local.lr=0.2"), 10)
    with pytest.raises(RunFailed, match="only 0"):
        run_on_devices(settings, other, RULES, out=tmp_path / "other")


def test_duplicates_and_unknown_replies_are_ignored(tmp_path):
    settings = experiment("rounds=1")
    link = Loopback(settings, 10)
    pull = link.pull

    def doubled(requests):
        answers = pull(requests)
        return [*answers, *answers] if requests and link.trains else answers

    link.trains = False
    push = link.push

    def pushing(request):
        link.trains = request.kind == "train"
        return push(request)

    link.pull, link.push = doubled, pushing
    result = run_on_devices(settings, link, RULES, out=tmp_path / "run", own_data=False)
    assert result.rounds[0]["clients"] == 10
    assert same(result.state, run(settings).state)
    assert any(kind == "reply ignored" for kind, _ in events(tmp_path / "run"))
