"""The Ray engine, on a real Ray that these tests start, and end by their own handle."""

import json
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from nestling.engines import Failure, LocalEngine, RayEngine, Reply
from nestling.engines import ray as module
from nestling.engines.limits import TimeLimits
from nestling.engines.ray_start import begin_ray, need_ray
from nestling.errors import RunError
from nestling.events import collect
from nestling.experiment.presets import find
from nestling.experiment.runner import run
from nestling.methods import make
from tests.engines import engine_jobs, removed_node
from tests.processes import call

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.slow,  # a Ray is a dozen processes
    pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed: pip install 'nestling[ray]'"),
]


@pytest.fixture(scope="module")
def ray():
    received = need_ray()
    begin_ray(received, 4, "")
    yield received
    received.shutdown()


@pytest.fixture(scope="module")
def engine(ray):
    own = RayEngine(engine_jobs.make, 2)
    yield own
    own.close()
    assert ray.is_initialized()  # it was there before


def done(engine, jobs, sizes=None):
    results = list(engine.work(jobs, sizes))
    assert sorted(result.index for result in results) == list(range(len(jobs)))
    return sorted(results, key=lambda result: result.index)


def values(engine, jobs):
    return [result.value for result in done(engine, jobs)]


def test_replies_are_those_of_the_local_engine(engine):
    jobs = [("echo", k) for k in range(4)] + [("wrong", "plain"), ("wrong", "picky"), ("no such work",), ("echo", None)]
    jobs += [("unsendable",), ("echo", engine_jobs.Unreadable()), ("threads",)]
    replies = [
        [(type(r), r.index, getattr(r, "value", None), repr(getattr(r, "error", None))) for r in done(used, jobs)]
        for used in (LocalEngine(engine_jobs.make), engine)
    ]
    assert replies[0][:8] == replies[1][:8]  # what follows goes wrong only on the way
    assert [kind for kind, *_ in replies[1][8:10]] == [Failure, Failure]
    assert "this job cannot be read" in replies[1][9][3]
    assert replies[1][10][2] == 1


def test_what_is_shared_is_there_and_tensors_are_exact(engine):
    state = {"weight": torch.randn(300, 300), "half": torch.randn(5).bfloat16(), "steps": torch.tensor(7)}
    shared = engine.share(state)
    for received in values(engine, [("echo", [shared, k]) for k in range(4)]):
        for name, sent in state.items():
            assert received[0][name].dtype == sent.dtype
            assert torch.equal(received[0][name], sent)


def test_a_lost_actor_is_replaced_and_its_job_done_again_at_last_here(engine, tmp_path, monkeypatch):
    assert done(engine, [("die", tmp_path / "one", 1), ("echo", 5)]) == [Reply(0, "alive"), Reply(1, 5)]
    assert (tmp_path / "one").read_text() == "tried\n" * 2
    saved = []
    monkeypatch.setattr(engine, "_before_last_try", lambda: saved.append(1))
    job = ("die_in_workers_with", tmp_path / "two", os.getpid(), engine.share(torch.ones(1000)))
    with collect() as events:
        assert done(engine, [job, ("echo", 5)]) == [Reply(0, 1000.0), Reply(1, 5)]
    assert (tmp_path / "two").read_text() == "tried\n" * 2 + "here\n"
    assert saved == [1]
    assert [event.kind for event in events] == ["worker lost"] * 2 + ["job moved to the main process"]


def test_an_actor_that_hangs_is_replaced_and_its_job_done_again(engine, tmp_path, monkeypatch):
    values(engine, [("echo", 1)] * 2)
    monkeypatch.setattr(engine, "limits", TimeLimits(2.0))
    with collect() as events:
        assert done(engine, [("stop", tmp_path / "log", 1), ("echo", 5)]) == [Reply(0, "alive"), Reply(1, 5)]
    first, second = map(int, (tmp_path / "log").read_text().split())
    assert first != second
    assert [event.kind for event in events] == ["worker lost"]
    assert f"Ray's worker process {first} on" in events[0].message
    assert "gave no answer within" in events[0].message
    end = time.monotonic() + 60
    while Path(f"/proc/{first}").exists() and "Z" not in state(first):
        assert time.monotonic() < end
        time.sleep(0.1)


def state(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def test_events_of_jobs_reach_whoever_listens(engine):
    with collect() as events:
        assert values(engine, [("tell", "fallback", "one")]) == ["one"]
    assert [event.message for event in events] == ["one"]


@pytest.mark.skipif(sys.platform != "linux", reason="processes are looked up in /proc")
def test_a_ray_that_is_killed_ends_the_run_with_its_rounds_saved_and_a_sentence(tmp_path):
    # Ray itself ends a process that is waiting for an answer of the raylet at that moment, about one time in six.
    folders = [tmp_path / str(attempt) for attempt in range(5)]
    folder, printed = next(
        ((one, text) for one in folders if (text := what_a_killed_raylet_leaves(one))), (tmp_path, "")
    )
    assert "error: Ray has ended on this machine" in printed
    assert list((folder / "run" / "checkpoints").glob("round-*"))


def what_a_killed_raylet_leaves(folder):
    """Run with Ray, kill the raylet after two rounds, and return what the run printed."""
    folder.mkdir()
    settings = ["rounds=500", "local.epochs=1", "data.max_samples=300", "evaluate.every=50", "checkpoint_every=1000"]
    command = [sys.executable, "-m", "nestling", "run", "heterofl-digits", *settings, "engine=ray", "workers=1"]
    place, printed = folder / "run", folder / "err"
    with printed.open("w") as err:
        run = subprocess.Popen([*command, "--quiet", "--out", str(place)], stderr=err, stdout=subprocess.DEVNULL)
    end = time.monotonic() + 240
    while not (place / "metrics.jsonl").exists() or (place / "metrics.jsonl").read_text().count("\n") < 2:
        assert run.poll() is None, printed.read_text()
        assert time.monotonic() < end
        time.sleep(0.1)
    assert not (place / "checkpoints").exists()
    (raylet,) = [pid for pid in descendants(run.pid) if Path(f"/proc/{pid}/comm").read_text() == "raylet\n"]
    os.kill(raylet, signal.SIGKILL)
    assert run.wait(120) == 1
    return printed.read_text()


def test_who_stops_listening_may_begin_again(engine):
    results = engine.work([("echo", "quick"), ("sleep", 1000)])
    assert next(results).value == "quick"
    with pytest.raises(RunError, match="one list of jobs at a time"):
        list(engine.work([("echo", 1)]))
    results.close()
    assert values(engine, [("echo", k) for k in range(3)]) == [0, 1, 2]
    assert list(engine.work([])) == []


@pytest.mark.skipif(sys.platform != "linux", reason="sockets are looked up in /proc")
def test_a_ray_of_our_own_listens_on_this_machine_alone(engine):
    pids = descendants(os.getpid())
    inodes = {link.partition("[")[2].rstrip("]") for pid in pids for link in sockets(pid)}
    heard = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == "0A" and inode in inodes:
                heard.append(local.partition(":")[0])
    assert len(heard) > 3
    assert set(heard) <= {"0100007F", "0000000000000000FFFF00000100007F"}


def descendants(pid):
    children = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(int(path.parent.name))
    received, left = [], [pid]
    while left:
        left += children.get(one := left.pop(), [])
        received.append(one)
    return received


def sockets(pid):
    try:
        links = [os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:
        return []
    return [link for link in links if link.startswith("socket:")]


def test_the_command_line_joins_a_ray_by_its_address_and_leaves_it_running(ray, tmp_path):
    changes = ["rounds=1", "local.epochs=1", "data.max_samples=300", "evaluate.samples=100"]
    where = ["engine=ray", "workers=2", f"address={ray.get_runtime_context().gcs_address}"]
    command = [sys.executable, "-m", "nestling", "run", "heterofl-digits", *changes, *where]
    call([*command, "--out", str(tmp_path / "run")], check=True)
    here = run(find("heterofl-digits").with_settings(changes))
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == json.loads(json.dumps(here.rounds))
    assert ray.is_initialized()


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nowhere at all"])
def test_a_ray_that_is_not_there_is_one_sentence_soon(address):
    program = "from nestling.engines.ray_start import begin_ray, need_ray\n" + f"begin_ray(need_ray(), 1, {address!r})"
    called = call([sys.executable, "-c", program])  # within its limit; Ray alone tries for five minutes
    assert f"RunError: no Ray can be joined at {address!r}" in called.stderr


def test_no_room_for_a_worker_is_one_sentence(engine, ray, monkeypatch):
    def hold():
        time.sleep(60)

    values(engine, [("echo", 1)] * 2)  # its workers hold two of the four CPUs
    greedy = ray.remote(num_cpus=2)(hold).remote()
    end = time.monotonic() + 60
    while ray.available_resources().get("CPU", 0) and time.monotonic() < end:
        time.sleep(0.1)
    monkeypatch.setattr(module, "_PATIENCE", 2.0)
    own = RayEngine(engine_jobs.make, 2)
    try:
        with pytest.raises(RunError, match="it has 4 CPUs"):
            list(own.work([("echo", 1)]))
    finally:
        ray.cancel(greedy, force=True)
        own.close()


def test_workers_that_nothing_can_be_made_from():
    with pytest.raises(RunError, match="at least 1 worker, not 0"):
        RayEngine(engine_jobs.make, 0)
    with pytest.raises(RunError, match="cannot be pickled"):
        RayEngine(lambda: abs, 1)


def test_a_ray_of_our_own_has_no_more_workers_than_the_machine_can_carry(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    with pytest.raises(RunError, match="workers=33 are more than a Ray started here may have: 16 per core, 32"):
        begin_ray(None, 33, "")


def test_a_node_that_is_removed_in_a_round_changes_no_byte(tmp_path):
    """Two nodes of one CPU have a worker each; partial merges are made where clients train."""
    call([sys.executable, "-m", "tests.engines.removed_node", str(tmp_path / "two")], check=True, cwd=ROOT)
    run(removed_node.experiment(), method=make("heterofl"), out=tmp_path / "one")
    one, two = (
        [(tmp_path / name / file).read_bytes() for file in ("metrics.jsonl", "model.safetensors")]
        for name in ("one", "two")
    )
    assert one == two
    lines = (tmp_path / "two" / "events.jsonl").read_text().splitlines()
    assert ("worker lost", 1) in {(event["kind"], event["round"]) for event in map(json.loads, lines)}
