"""Signals and warnings as people and batch systems meet them: real processes, stopped by real signals."""

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import nestling
from nestling.cli import main
from nestling.cli.log import log_to_stderr
from nestling.events import report
from nestling.experiment import find
from nestling.experiment.simulator import Simulator

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX systems")
PATIENCE = 240  # seconds until something that must happen counts as never
QUICK = ["local.epochs=1", "data.max_samples=300", "evaluate.every=1000", "evaluate.samples=50", "fleet.per_round=2"]


def begin(*args, ignored=(), **more):
    """Start the program with signals as a shell would give them, whatever this process has inherited."""

    def prepare():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)

    path = os.pathsep.join([str(Path(nestling.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, "-m", "nestling", *args],
        text=True,
        preexec_fn=prepare,  # noqa: PLW1509  (nothing but signals is touched)
        env={**os.environ, "PYTHONPATH": path},
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more},
    )


def wait_for(process, condition):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert process.poll() is None, process.stderr and process.stderr.read()
        assert time.monotonic() < end
        time.sleep(0.05)


def rounds(place):
    return (place / "metrics.jsonl").read_text().count("\n") if (place / "metrics.jsonl").exists() else 0


def gone(pid):
    """Whether a process has ended, once it had the time to."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False


def ended(process):
    _, err = process.communicate(timeout=PATIENCE)
    return process.returncode, err.strip()


@pytest.mark.slow
def test_a_hangup_saves_whole_rounds_though_the_terminal_is_gone(tmp_path):
    place = tmp_path / "run"
    screen, terminal = os.openpty()
    os.set_blocking(screen, False)
    command = ["run", "fedavg-digits", "rounds=5000", *QUICK, "checkpoint_every=9999", "--out", str(place)]
    process = begin(*command, stderr=terminal)
    os.close(terminal)

    def enough():
        with contextlib.suppress(OSError):
            while os.read(screen, 4096):  # the progress bar must not wait for us
                pass
        return rounds(place) >= 2

    wait_for(process, enough)
    assert not (place / "checkpoints").exists()
    os.close(screen)
    process.send_signal(signal.SIGHUP)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 129
    assert list((place / "checkpoints").glob("round-*"))


@pytest.mark.slow
def test_sigterm_to_the_whole_group_saves_whole_rounds_and_what_nohup_ignores_stays_ignored(tmp_path):
    """As batch systems end programs; workers are ended with the program and say nothing of it."""
    place = tmp_path / "run"
    command = ["run", "fedavg-digits", "rounds=5000", *QUICK, "checkpoint_every=9999", "workers=2", "--quiet"]
    process = begin(*command, "--out", str(place), ignored=[signal.SIGHUP], start_new_session=True)
    wait_for(process, lambda: rounds(place) >= 1)
    os.killpg(process.pid, signal.SIGHUP)
    before = rounds(place)
    wait_for(process, lambda: rounds(place) >= before + 2)
    os.killpg(process.pid, signal.SIGTERM)
    assert ended(process) == (143, f"stopped; all whole rounds are saved: nestling resume {place}")
    assert list((place / "checkpoints").glob("round-*"))


@pytest.mark.slow
def test_stopped_in_the_first_round_nothing_is_said_to_be_saved(tmp_path):
    place = tmp_path / "run"
    slow = ["local.epochs=100000", "data.max_samples=300", "rounds=2"]
    process = begin("run", "fedavg-digits", *slow, "--out", str(place))
    wait_for(process, (place / "metrics.jsonl").exists)
    process.send_signal(signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(30)
    if process.poll() is None:  # rarely, Python drops an exception: where a finalizer runs at that moment
        process.send_signal(signal.SIGINT)
    code, err = ended(process)
    assert code == 130
    assert err.splitlines()[-1] == (
        f"stopped before the first round was finished; nothing is saved; to begin again: nestling resume {place}"
    )
    assert not (place / "checkpoints").exists()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="processes are looked up in /proc")
def test_compare_saves_the_rounds_of_all_its_runs(tmp_path):
    command = ["compare", "fedavg-digits", "heterofl-digits", "rounds=5000", *QUICK, "checkpoint_every=9999", "--quiet"]
    process = begin(*command, "--processes", "2", "--out", str(tmp_path / "all"), start_new_session=True)
    places = [tmp_path / "all" / name / "seed-0" for name in ("fedavg-digits", "heterofl-digits")]
    wait_for(process, lambda: all(rounds(place) >= 2 for place in places))
    children = {int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()}
    os.killpg(process.pid, signal.SIGHUP)
    assert ended(process) == (129, "stopped; give the same command again to go on")
    for place in places:
        assert list((place / "checkpoints").glob("round-*"))
    assert len(children) >= 2
    assert all(map(gone, children))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="processes are looked up in /proc")
def test_runs_of_a_compare_that_is_killed_save_and_end(tmp_path):
    place = tmp_path / "all" / "fedavg-digits" / "seed-0"
    command = ["compare", "fedavg-digits", "rounds=5000", *QUICK, "checkpoint_every=9999", "--quiet"]
    process = begin(*command, "--out", str(tmp_path / "all"))
    wait_for(process, lambda: rounds(place) >= 2)
    children = {int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()}
    process.kill()
    assert ended(process) == (-9, "")  # when its children have closed stderr, too
    assert list((place / "checkpoints").glob("round-*"))
    assert all(map(gone, children))


# ---- warnings


@pytest.fixture
def telling(monkeypatch):
    """A run in which something is reported."""
    run_round = Simulator.run_round

    def run_and_report(*given):
        report("worker lost", "worker process 7 was killed by SIGKILL")
        report("worker lost", "worker process 8 was killed by SIGKILL")
        report("kernel slow", "plain PyTorch does the work", logging.INFO)
        return run_round(*given)

    monkeypatch.setattr(Simulator, "run_round", run_and_report)


def test_warnings_are_lines_on_stderr_and_summed_up(telling, tmp_path, capsys):
    place = tmp_path / "run"
    assert main(["run", "fedavg-digits", "rounds=2", *QUICK, "--out", str(place), "--quiet", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["events"] == {"kernel slow": 2, "worker lost": 4}
    assert err.splitlines() == [
        "warning: round 1: worker process 7 was killed by SIGKILL",
        "warning: round 2: worker process 7 was killed by SIGKILL",
        f"4 workers lost: see {place}/events.jsonl",
    ]


@pytest.mark.parametrize("where", ["first", "last"])
def test_verbose_shows_what_is_no_warning(where, telling, tmp_path, capsys):
    place = tmp_path / "run"
    command = ["run", "fedavg-digits", "rounds=1", *QUICK, "--out", str(place), "--quiet"]
    assert main(["--verbose", *command] if where == "first" else [*command, "--verbose"]) == 0
    assert capsys.readouterr().err.splitlines() == [
        "warning: round 1: worker process 7 was killed by SIGKILL",
        "info: round 1: plain PyTorch does the work",
        f"1 kernel slow, 2 workers lost: see {place}/events.jsonl",
    ]
    assert not logging.getLogger("nestling").handlers
    assert logging.getLogger("nestling").level == logging.NOTSET


def test_a_message_of_several_lines_is_one_line(capsys):
    with log_to_stderr(verbose=False):
        report("worker lost", "it said:\n  much")
    assert capsys.readouterr().err == "warning: it said: much\n"


def test_a_library_call_is_logged_and_configures_nothing(telling, caplog):
    nestling.run(find("fedavg-digits").with_settings(["rounds=1", *QUICK]))
    assert [record.levelname for record in caplog.records if record.name == "nestling"] == ["WARNING"]
    assert not logging.getLogger("nestling").handlers
    assert logging.getLogger("nestling").propagate


UNGUARDED = """
import nestling
from nestling.experiment import find
settings = ["rounds=1", "workers=2", "local.epochs=1", "data.max_samples=300"]
nestling.run(find("fedavg-digits").with_settings(settings), out="here")
"""


@pytest.mark.slow
def test_a_script_without_a_guard_is_told_so_once(tmp_path):
    (tmp_path / "script.py").write_text(UNGUARDED)
    path = os.pathsep.join([str(Path(nestling.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    called = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert called.returncode == 1
    assert called.stderr.count("Traceback") == 1  # that of the script, which does not catch the error
    assert called.stderr.splitlines()[-1].startswith("nestling.errors.RunError: workers=2 starts new Python processes")
