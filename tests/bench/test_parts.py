"""The benchmark runs, and says what it finds; its figures are never judged here."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench import PARTS, chosen, measure, report
from bench.__main__ import main
from bench.apart import apart, most_memory
from bench.rounds.asleep import asleep
from bench.rounds.contest import Contestant, contest
from bench.rounds.measure import _others, _ratios, rounds
from bench.rounds.others import FLOWER, LEAN, OTHERS, PFL, Other
from bench.rounds.player import SYSTEMS, command
from bench.rounds.workloads import find
from nestling.errors import RunError

SAYS = "import json, sys\nprint(json.dumps({'ready': True}), flush=True)\n"
COUNTS = SAYS + "for n, _ in enumerate(sys.stdin): print(json.dumps({'round': [9, 1, 2, 8][n]}), flush=True)"
DIES = SAYS + "sys.stdin.readline(); raise SystemExit('no more memory')"


def test_contestants_take_turns_and_the_first_does_not_count():
    programs = {name: Contestant([sys.executable, "-c", code]) for name, code in (("a", COUNTS), ("b", DIES))}
    assert contest(programs, 3) == {"a": [{"round": 1}, {"round": 2}, {"round": 8}], "b": "no more memory"}


def test_a_program_that_cannot_start_is_told():
    (results,) = contest({"a": Contestant([sys.executable, "-c", "import nothing_like_this"])}, 1).values()
    assert "nothing_like_this" in results


def test_a_silent_program_is_ended(monkeypatch):
    monkeypatch.setattr("bench.rounds.contest.PATIENCE", 0.2)
    silent = Contestant([sys.executable, "-c", "import time; time.sleep(60)"])
    with pytest.raises(RunError, match="said nothing"):
        silent.hear()
    monkeypatch.setattr("bench.rounds.contest.LAST_WORDS", 0.1)
    silent.close()
    with pytest.raises(ProcessLookupError):
        os.kill(silent._process.pid, 0)


def test_another_system_is_started_in_its_own_environment(tmp_path, monkeypatch):
    """What is told of it: why it is not there, or what it says."""
    monkeypatch.chdir(tmp_path)
    assert "no .venv-flower here" in FLOWER.missing()
    (tmp_path / ".venv-x/bin").mkdir(parents=True)
    (tmp_path / ".venv-x/.ready").touch()
    (tmp_path / ".venv-x/bin/python").symlink_to(sys.executable)
    other = Other("x", "x.py", ".venv-x", ("mlp",))
    assert "repository" in other.missing()
    (tmp_path / "x.py").write_text(SAYS + "for _ in sys.stdin: print(json.dumps({'round': len(sys.argv)}), flush=True)")
    assert not other.missing()
    assert contest({"x": other.start("mlp", quick=True)}, 1) == {"x": [{"round": 3}]}


class Here:
    """A contestant in this process."""

    def __init__(self, command):
        system, workload, size = command[-3:]
        self.turn = SYSTEMS[system](find(workload, size == "quick"))

    def hear(self):
        return {"ready": True}

    def close(self):
        pass


@pytest.fixture
def here(monkeypatch):
    """No programs but this one: figures of memory mean nothing."""
    for part in ("memory", "populations", "submodels"):
        monkeypatch.setattr(f"bench.{part}.apart", lambda measure, *given: measure(*given))
    monkeypatch.setattr("bench.rounds.player.WORKERS", 1)


@pytest.mark.slow
def test_programs_apart():
    assert apart(most_memory) > 1000
    with pytest.raises(RunError, match="nobody"):
        apart(most_memory, "nobody")
    program = Contestant(command("floor", "mlp", quick=True))
    assert contest({"floor": program}, 1)["floor"][0]["round"] > 0


@pytest.mark.slow
def test_rounds_of_every_system(tmp_path, monkeypatch, here):
    monkeypatch.chdir(tmp_path)  # where no other system is installed
    monkeypatch.setattr("bench.rounds.measure.Contestant", Here)
    results = measure(lambda quick: rounds(quick, ["mlp"]), quick=True)
    seconds, evaluated, profile = results["tables"]
    for table in (seconds, evaluated):
        ((_, values),) = table["rows"]
        assert len(values) == len(table["columns"])
        assert all(value > 0 for value in values)
    assert sum(profile["rows"][0][1]) == pytest.approx(100)
    named = {figure["name"]: figure for figure in results["figures"]}
    assert sum("MLP, 100 clients" in name for name in named) == 4
    for other in ("Flower", "Flower, lean", "pfl"):
        assert named[other]["value"] is None
        assert "was not measured" in named[other]["note"]


def test_bounds_against_others_hold_where_clients_are_alike(monkeypatch):
    """Ten times as fast as Flower as people use it; there is no bound against the lean one."""
    monkeypatch.setattr(Other, "missing", lambda self: "")
    figures = {
        (other.name, name): figure
        for other in OTHERS
        for name in other.workloads
        for figure in _others(other, {name: {"groups": [{"round": 1.0}], other.name: [{"round": 9.0}]}})
    }
    assert {key for key, figure in figures.items() if figure.bound == "≥ 10" and not figure.ok} == {
        ("Flower", "cnn-e"),
        ("Flower", "mlp"),
        ("Flower", "mlp-e"),
    }
    assert {key[0] for key, figure in figures.items() if figure.bound == "≥ 1" and figure.ok} == {PFL.name}
    assert {key for key, figure in figures.items() if not figure.bound} == {
        ("Flower", "cifar10"),
        ("Flower", "mnist"),
        *((LEAN.name, name) for name in LEAN.workloads),
    }


def test_less_work_than_the_research_loop_does_has_no_bound():
    turns = [{"round": 1.0, "evaluation": 1.0}]
    slow = [{"round": 4.0, "evaluation": 3.0}]
    figures = {figure.note: figure for figure in _ratios("cifar10", {"groups": turns, "research": slow})}
    same, less = figures["the same work"], figures["less work: the loop evaluates each round"]
    assert (same.value, same.bound, same.ok) == (3.5, "≥ 4", False)
    assert (round(less.value, 2), less.bound) == (6.36, "")
    assert {figure.bound for figure in _ratios("mnist", {"groups": turns, "research": slow})} == {""}


# workers and morphs train whole ResNets, which takes long; rounds are tested above, devices in test_devices.py
@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(PARTS.keys() - {"rounds", "workers", "morphs", "devices"}))
def test_parts_run(name, here):
    results = measure(PARTS[name], quick=True)
    numbers = [figure["value"] for figure in results["figures"]]
    numbers += [number for table in results["tables"] for _, row in table["rows"] for number in row]
    assert numbers
    assert min(numbers) >= 0


def test_the_command_prints_what_was_measured(tmp_path, monkeypatch, capsys):
    figure = {"name": "merge", "value": None, "unit": "×", "bound": "≥ 1", "ok": False, "note": "why"}
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(report({"merges": {"figures": [figure], "tables": []}})))
    assert main(["--read", str(path), "--markdown"]) == 0
    assert "| merge | – | ≥ 1 | no | why |" in capsys.readouterr().out
    assert main(["--read", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["machine"]["threads"] == 1
    assert main(["--read", str(tmp_path / "none.json")]) == 2
    assert "none.json' cannot be read: No such file" in capsys.readouterr().err.replace("\n", " ")
    path.write_text("[1, 2]")
    assert main(["--read", str(path)]) == 2
    assert "is not what 'python -m bench --json' prints" in capsys.readouterr().err.replace("\n", " ")
    assert main(["merging"]) == 2
    assert "did you mean 'merges'" in capsys.readouterr().err.replace("\n", " ")
    assert list(chosen([])) == list(PARTS)


def wait_until(stopped, processes):
    """Whether all of some processes are stopped, or none: signals take their time."""
    for _ in range(200):
        states = [Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] for process in processes]
        if [state == "T" for state in states] == [stopped] * len(states):
            return True
        time.sleep(0.05)
    return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="there is no /proc")
def test_what_a_program_started_sleeps_while_it_waits():
    child = subprocess.Popen(["sh", "-c", "sleep 60 & echo $!; wait"], stdout=subprocess.PIPE, text=True)
    try:
        both = [child.pid, int(child.stdout.readline())]
        with asleep():
            assert wait_until(True, both)
        assert wait_until(False, both)
        os.kill(both[1], signal.SIGTERM)
        assert child.wait(30) is not None
        with asleep():  # whoever has ended is left alone
            pass
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
