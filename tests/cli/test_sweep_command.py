"""`nestling sweep` as people and scripts use it."""

import json
import signal
import subprocess
import sys

import pytest

from nestling.cli import main
from tests.processes import start, wait_until

QUICK = ["local.epochs=1", "data.max_samples=200", "evaluate.samples=50", "model.options.widths=[4, 4, 4]"]


def nestling(capsys, *args):
    code = main(args)
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def times(folder):
    return {path.parent: path.stat().st_mtime_ns for path in folder.rglob("summary.json")}


@pytest.mark.slow
def test_a_grid_runs_once_grows_and_is_one_table_and_page(tmp_path, capsys):
    out = tmp_path / "all"
    command = ["sweep", "heterofl-digits", *QUICK, "rounds=1", "method=heterofl,fedavg", "--out", str(out)]
    command += ["--jobs", "1", "--json"]
    code, printed, err = nestling(capsys, *command, "local.lr=0.01,0.1")
    rows = json.loads(printed)
    assert code == 0
    assert [row["settings"] for row in rows] == [
        {"method": method, "local.lr": lr} for method in ("heterofl", "fedavg") for lr in (0.01, 0.1)
    ]
    assert [row["method"] for row in rows] == ["heterofl", "heterofl", "fedavg", "fedavg"]
    assert len({row["final"]["global_loss"]["mean"] for row in rows}) == 4
    assert "report.html" in err
    assert all(row["experiment"] in (out / "report.html").read_text() for row in rows)
    before = times(out)
    assert len(before) == 4
    code, printed, _ = nestling(capsys, *command, "local.lr=0.01,0.1,0.3", "--no-report")
    assert (code, len(json.loads(printed))) == (0, 6)
    assert before.items() < times(out).items()  # finished runs are read
    alone = ["heterofl-digits", *QUICK, "rounds=1", "method=fedavg", "local.lr=0.1", "--out", str(tmp_path / "one")]
    assert nestling(capsys, "run", *alone)[0] == 0
    swept = out / "local.lr=0.1,method=fedavg" / "seed-0"
    assert (tmp_path / "one" / "metrics.jsonl").read_bytes() == (swept / "metrics.jsonl").read_bytes()
    code, _, err = nestling(capsys, *command, "local.lr=0.01,0.1", "local.batch_size=7")
    assert code == 2
    assert "holds a run with other settings (local.batch_size)" in err


@pytest.mark.slow
def test_an_interrupted_sweep_goes_on(tmp_path, capsys):
    out = tmp_path / "all"
    command = ["sweep", "fedavg-digits", *QUICK, "rounds=60", "local.lr=0.01,0.1", "--out", str(out), "--jobs", "1"]
    command += ["--no-report", "--json"]
    first = out / "local.lr=0.01" / "seed-0" / "metrics.jsonl"
    with start([sys.executable, "-m", "nestling", *command], stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: (first.exists() and first.read_bytes().count(b"\n") > 2) or process.poll() is not None)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
    assert (process.returncode, err) == (130, "stopped; give the same command again to go on\n")
    assert times(out) == {}
    done = json.loads(nestling(capsys, *command, "--dry-run")[1])
    assert [run["finished"] for run in done] == [False, False]
    assert 2 < done[0]["rounds_done"] < 60
    assert done[1]["rounds_done"] == 0
    code, printed, _ = nestling(capsys, *command)
    assert (code, [row["rounds"] for row in json.loads(printed)]) == (0, [60, 60])
    assert [json.loads(line)["round"] for line in first.read_text().splitlines()] == list(range(1, 61))


def test_a_dry_run_lists_the_runs_and_writes_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = ["sweep", "fedavg-digits", *QUICK, "rounds=3", "local.lr=0.01,0.1", "--seeds", "2", "--dry-run"]
    code, out, err = nestling(capsys, *command)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert [line.split() for line in lines[2:-1]] == [
        [f"runs/sweep/fedavg-digits/local.lr={lr}/seed-{seed}", "3", "0"] for lr in (0.01, 0.1) for seed in (0, 1)
    ]
    assert lines[-1] == "4 runs, 0 of them finished"
    code, out, _ = nestling(capsys, *command, "--json")
    assert [run["settings"] for run in json.loads(out)] == [{"local.lr": lr} for lr in (0.01, 0.01, 0.1, 0.1)]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["heterofl-digts", "local.lr=1,2"], "did you mean 'heterofl-digits'"),
        (["heterofl-digits", "local.lrr=1,2"], "local.lrr=1: "),
        (["heterofl-digits", "method=heterofl,fedrolx"], "method=fedrolx: there is no method 'fedrolx'"),
        (["heterofl-digits", "fleet.levels=a-e,a-zz"], "fleet.levels=a-zz: "),
        (["heterofl-digits", "method=heterofl,fedrolex", "options.step=1,2"], "method=heterofl options.step=1: "),
        (["heterofl-digits", "seed=" + ",".join(map(str, range(1001)))], "this grid has 1,001 runs"),
    ],
)
def test_bad_grids_are_refused_before_anything_runs(tmp_path, capsys, monkeypatch, args, words):
    monkeypatch.chdir(tmp_path)
    code, out, err = nestling(capsys, "sweep", *args)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert words in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
