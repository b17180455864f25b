"""One directory has one writer: who comes second is told who writes, and nothing that a kill leaves is in the way."""

import errno
import fcntl
import json
import multiprocessing
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nestling.cli import main
from nestling.errors import RunError
from nestling.events import collect
from nestling.experiment import resume, run
from nestling.experiment.callback import Callback
from nestling.experiment.directory import claim
from nestling.experiment.lock import LOCK, locked
from nestling.experiment.sweep import run_sweep
from tests.run_cases import outcome, tiny


def hold(folder, ready):
    """Hold the lock of a directory until killed."""
    with locked(folder):
        ready.set()
        signal.pause()


@pytest.fixture
def other_writer():
    """Start processes that hold the lock of a directory until the test ends."""
    context, started = multiprocessing.get_context("fork"), []  # they need no torch

    def start(folder):
        ready = context.Event()
        process = context.Process(target=hold, args=(folder, ready))
        process.start()
        started.append(process)
        assert ready.wait(60)
        return process

    yield start
    for process in started:
        process.kill()
        process.join(60)


class Meanwhile(Callback):
    """Does something in the middle of a run."""

    def __init__(self, action):
        self.action = action

    def on_round(self, record, state):
        if record["round"] == 1:
            self.action()


def test_the_second_writer_is_told_who_writes(tmp_path, other_writer, capsys):
    folder = tmp_path / "run"
    run(tiny(rounds=1), out=folder, quiet=True)
    before = outcome(folder)
    writer = other_writer(folder)
    sentence = f"is being written by process {writer.pid}: wait until it ends, or give another directory"
    for action in (lambda: run(tiny(rounds=1), out=folder), lambda: resume(folder)):
        with pytest.raises(RunError, match=sentence):
            action()
    assert main(["resume", str(folder)]) == 2
    err = capsys.readouterr().err
    assert sentence in err
    assert err.count("\n") == 1
    assert outcome(folder) == before
    writer.kill()  # what is left of it is in nobody's way
    writer.join(60)
    assert (folder / LOCK).exists()
    resume(folder)
    assert not (folder / LOCK).exists()


def test_a_process_cannot_write_twice_either(tmp_path):
    refused = []

    def again():
        with pytest.raises(RunError, match=f"is being written by process {os.getpid()}"):
            resume(tmp_path / "run")
        refused.append(True)

    run(tiny(rounds=2), out=tmp_path / "run", callbacks=[Meanwhile(again)])
    assert refused
    assert not (tmp_path / "run" / LOCK).exists()


@pytest.mark.slow
def test_compare_is_told_too(tmp_path, other_writer, capsys):
    writer = other_writer(tmp_path / "all")
    assert main(["compare", "fedavg-digits", "rounds=1", "--out", str(tmp_path / "all")]) == 2
    assert f"is being written by process {writer.pid}" in capsys.readouterr().err
    other_writer(tmp_path / "one" / "seed-0")
    failed = run_sweep({tmp_path / "one" / "seed-0": tiny(rounds=1)})
    assert "is being written by process" in str(failed[tmp_path / "one" / "seed-0"])


def test_a_lock_that_is_being_removed_is_not_taken(tmp_path, monkeypatch):
    """Between opening the file and locking it, its owner may remove it: another file is the lock then."""
    flock, removed = fcntl.flock, []

    def slow(handle, operation):
        if not removed:
            removed.append((tmp_path / LOCK).unlink())
        flock(handle, operation)

    monkeypatch.setattr(fcntl, "flock", slow)
    with locked(tmp_path):
        assert (tmp_path / LOCK).read_text().split()[0] == str(os.getpid())


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_file_systems_that_cannot_lock_are_named(tmp_path, monkeypatch, number):
    def flock(handle, operation):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    with collect() as events, locked(tmp_path / "run"):
        pass
    assert [event.kind for event in events] == ["no lock"]
    assert os.strerror(number) in events[0].message


def hold_and_fork(folder, queue):
    with locked(folder):
        child = os.fork()
        if child:
            queue.put(child)
        signal.pause()


def test_a_forked_child_does_not_keep_the_lock(tmp_path):
    """A process that outlives a killed run, such as a user's own helper, must not block the directory."""
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    process = context.Process(target=hold_and_fork, args=(tmp_path, queue))
    process.start()
    child = queue.get()
    process.kill()
    process.join()  # with a time limit it would wait for a pipe that the child keeps open
    try:
        with locked(tmp_path):
            os.kill(child, 0)  # it is still there
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(RunError, match=r"is a file: give a directory|cannot be written \(Not a directory\)"):
            run(tiny(rounds=1), out=place)


def test_directories_are_claimed_by_one_only(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        places = list(pool.map(lambda _: claim(tmp_path / "runs" / "seed-0"), range(40)))
    assert len(set(places)) == 40
    assert all(place.is_dir() for place in places)


def _claim(folder, barrier, queue):
    barrier.wait(60)
    queue.put(str(claim(Path(folder) / "runs" / "seed-0")))


def test_two_processes_that_start_together_get_two_directories(tmp_path):
    context = multiprocessing.get_context("fork")  # they need no torch
    barrier, queue = context.Barrier(4), context.Queue()
    processes = [context.Process(target=_claim, args=(tmp_path, barrier, queue)) for _ in range(4)]
    for process in processes:
        process.start()
    places = [queue.get(timeout=60) for _ in processes]
    for process in processes:
        process.join(60)
    assert len(set(places)) == 4


def test_a_run_that_cannot_begin_leaves_no_directory(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NESTLING_CACHE", str(tmp_path / "cache"))
    assert main(["run", "heterofl-mnist-iid-a-e", "--data-dir", "nowhere"]) == 2
    assert main(["run", "heterofl-mnist-iid-a-e", "--data-dir", "nowhere", "--out", "deep/er/run"]) == 2
    assert "nowhere" in capsys.readouterr().err
    assert not list(Path("runs").iterdir())
    assert not Path("deep").exists()


def leave_drafts(folder):
    """What kills leave behind: drafts of every file, and of checkpoints."""
    for name in ("config.toml", "identity.json", "metrics.jsonl", "summary.json", "seconds.json", "model.safetensors"):
        (folder / f".{name}.ab12_xyz").write_text("half")
    for inner, name in (("private", "3-2"), ("memory", "3-2"), ("submodels", "level-0.5")):
        (folder / inner).mkdir(exist_ok=True)
        (folder / inner / f".{name}.safetensors.ab12_xyz").write_text("half")
    (folder / "checkpoints" / ".round-000007").mkdir(parents=True)
    (folder / "checkpoints" / ".round-000007" / "state.safetensors").write_text("half")
    (folder / LOCK).write_text("999999 here\n")


def test_a_directory_in_which_no_run_began_can_be_used(tmp_path):
    run(tiny(rounds=1), out=tmp_path / "whole")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / LOCK).write_text("999999 here\n")
    (folder / ".config.toml.ab12_xyz").write_text("half")
    (folder / "identity.json").write_text("{}")
    with pytest.raises(RunError, match=r"holds no config\.toml, so nothing was started here; 'nestling run … --out"):
        resume(folder)
    run(tiny(rounds=1), out=folder)
    assert outcome(folder) == outcome(tmp_path / "whole")
    assert not list(folder.glob(".*"))


def test_drafts_go_and_what_others_put_there_stays(tmp_path):
    folder = tmp_path / "run"
    run(tiny(rounds=1), out=folder)
    leave_drafts(folder)
    foreign = [".notes", ".config.toml.swp", "private/mine.txt", "checkpoints/.keep", "checkpoints/round-old"]
    for name in foreign:
        (folder / name).write_text("mine")
    resume(folder, rounds=2)
    hidden = {str(path.relative_to(folder)) for path in folder.rglob(".*")}
    assert hidden == {".notes", ".config.toml.swp", "checkpoints/.keep"}
    assert all((folder / name).read_text() == "mine" for name in foreign)


def test_reports_ignore_a_lock(tmp_path, other_writer, capsys):
    run(tiny(rounds=1), out=tmp_path / "run")
    other_writer(tmp_path / "run")
    assert main(["report", str(tmp_path / "run"), "--out", str(tmp_path / "page.html")]) == 0
    capsys.readouterr()
    assert main(["compare", str(tmp_path / "run"), "--json", "--no-report"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 1
