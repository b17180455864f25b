"""`nestling run`, `resume`, `compare` and `report` as people and scripts use them."""

import json
import shlex
import signal
import subprocess
import sys

import pytest

from nestling.cli import main
from tests.processes import start, wait_until

QUICK = ["rounds=2", "local.epochs=1", "data.max_samples=300", "evaluate.every=1", "evaluate.samples=100"]
QUICKER = [*QUICK, "model.options.widths=[4, 8, 8]"]


def nestling(capsys, *args):
    code = main(args)
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_a_run_leaves_what_scripts_look_for(tmp_path, capsys):
    code, out, err = nestling(
        capsys, "run", "heterofl-digits", *QUICK, "seed=3", "--out", str(tmp_path / "run"), "--quiet"
    )
    assert (code, err) == (0, "")
    assert str(tmp_path / "run") in out
    assert [line.split()[0] for line in out.splitlines()[2:7]] == list("abcde")
    files = {path.name for path in (tmp_path / "run").iterdir()}
    assert files >= {"config.toml", "metrics.jsonl", "summary.json", "checkpoints", "model.safetensors"}
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    wanted = {"method", "model", "dataset", "seed", "rounds", "final", "best", "bytes_down", "bytes_up", "client_macs"}
    assert summary.keys() >= wanted | {"seconds"}
    accuracies = {"global_accuracy", "worst_submodel", "mean_submodel", "local_accuracy", "submodels"}
    assert summary["final"].keys() >= accuracies <= summary["best"].keys()
    assert summary["command"].startswith("nestling run heterofl-digits rounds=2 seed=3 ")
    again = shlex.split(summary["command"])[1:]
    code, out, _ = nestling(capsys, *again, "--out", str(tmp_path / "again"), "--json")
    printed = json.loads(out)
    assert code == 0
    assert printed["final"] == summary["final"]
    assert (tmp_path / "again" / "metrics.jsonl").read_bytes() == (tmp_path / "run" / "metrics.jsonl").read_bytes()


@pytest.mark.slow
def test_a_private_run_ends_with_what_it_cost(tmp_path, capsys):
    pytest.importorskip("dp_accounting")
    private = ["parts=dp:clip=0.5:epsilon=5", "options.masked=false", "model.options.norm=gn", "fleet.per_round=20"]
    code, out, _ = nestling(
        capsys, "run", "heterofl-digits", *QUICK, *private, "--out", str(tmp_path / "run"), "--quiet"
    )
    assert code == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert 4.9 < summary["privacy"]["epsilon"] <= 5
    line = next(line for line in out.splitlines() if line.startswith("privacy: "))
    assert line == f"privacy: ε {summary['privacy']['epsilon']:.3g} at δ 0.037 (add-or-remove-one), of the models alone"


def test_runs_find_a_place_by_themselves(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("seed-0", "seed-0-2"):
        code, _, err = nestling(capsys, "run", "fedavg-digits", *QUICKER, "rounds=1", "--quiet")
        assert (code, err) == (0, "")
        assert (tmp_path / "runs" / "fedavg-digits" / name / "summary.json").exists()


def test_toml_files_and_tensorboard(tmp_path, capsys):
    file = tmp_path / "mine.toml"
    file.write_text('method = "fedprox"\nrounds = 1\n[data]\nsamples = 300\n[fleet]\nclients = 4\nper_round = 2\n')
    options = ["--out", str(tmp_path / "run"), "--tensorboard", "--quiet"]
    code, _, err = nestling(capsys, "run", str(file), "local.epochs=1", *options)
    assert (code, err) == (0, "")
    assert list((tmp_path / "run" / "tensorboard").glob("events*"))
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["method"] == "fedprox"


@pytest.mark.slow
def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path):
    place = tmp_path / "run"
    settings = ["fedrolex-digits", "rounds=40", *QUICKER[1:]]
    command = [sys.executable, "-m", "nestling", "run", *settings, "--out", str(place), "--quiet"]
    metrics = place / "metrics.jsonl"
    with start(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        wait_until(lambda: (metrics.exists() and metrics.read_text().count("\n") > 1) or process.poll() is not None)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
    assert process.returncode == 130, err
    assert err.strip() == f"stopped; all whole rounds are saved: nestling resume {place}"
    assert list((place / "checkpoints").iterdir())
    assert not (place / "summary.json").exists()


@pytest.mark.slow
def test_compare_runs_once_and_reads_after_that(tmp_path, capsys):
    command = ["compare", "fedavg-digits", "heterofl-digits", *QUICKER, "--seeds", "2", "--out", str(tmp_path / "all")]
    code, out, err = nestling(capsys, *command, "--json")
    rows = json.loads(out)
    assert code == 0
    assert [row["seeds"] for row in rows] == [2, 2] or all(row["seeds"] in (2, [0, 1]) for row in rows)
    assert "report.html" in err
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "all").rglob("summary.json")}
    assert len(before) == 4
    command += ["--processes", "1"]
    code, out, _ = nestling(capsys, *command)
    assert code == 0
    assert "±" in out
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "all").rglob("summary.json")} == before
    code, _, err = nestling(capsys, *command, "local.lr=0.3")
    assert code == 2
    assert "other settings" in err
    code, out, _ = nestling(capsys, "report", str(tmp_path / "all"), "--out", str(tmp_path / "page.html"))
    assert code == 0
    assert "<html" in (tmp_path / "page.html").read_text()[:2000]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["run", "heterofl-digts"], "did you mean 'heterofl-digits'"),
        (["run", "heterofl-digits", "rounds"], "key=value"),
        (["run", "heterofl-digits", "rounds=-3"], "rounds cannot be -3"),
        (["run", "heterofl-digits", "local.lrr=1"], "did you mean 'lr'"),
        (["run", "nowhere.toml"], "nowhere.toml"),
        (["resume", "nowhere"], "is not a run directory"),
        (["compare", "heterofl-digits", "heterofl-digits"], "is given twice"),
        (["list", "presets", "xyz"], "none of the presets has 'xyz'"),
        (["run", "heterofl-mnist-iid-a-e", "--data-dir", "nowhere"], "nowhere"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(capsys, args, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NESTLING_CACHE", str(tmp_path / "cache"))
    code, out, err = nestling(capsys, *args)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert words in err
    assert err.count("\n") == 1


def test_a_loss_that_is_no_number_is_told_in_one_sentence(tmp_path, capsys):
    code, out, err = nestling(
        capsys,
        "run",
        "heterofl-digits",
        *QUICK,
        "local.lr=1e30",
        "local.clip_norm=0",
        "--quiet",
        "--out",
        str(tmp_path / "run"),
    )
    assert (code, out) == (1, "")
    assert err.startswith("error: round ")
    assert "no longer a number" in err or "not finite" in err


def test_presets_of_the_papers_are_listed(capsys):
    code, out, _ = nestling(capsys, "list", "presets", "--json")
    names = [row["name"] for row in json.loads(out)]
    assert code == 0
    assert {"heterofl-cifar10-iid-a-e", "heterofl-cifar10-iid-a-e-laptop", "fjord-digits"} <= set(names)


def test_what_was_taken_of_a_file_of_weights_is_told(tmp_path, capsys):
    first = ["run", "heterofl-digits", *QUICKER, "rounds=1", "--out"]
    assert nestling(capsys, *first, str(tmp_path / "first"))[0] == 0
    weights = f"model.weights='{tmp_path / 'first' / 'model.safetensors'}'"
    code, _, err = nestling(capsys, *first, str(tmp_path / "second"), weights)
    assert code == 0
    assert "23 of 23 tensors filled" in err.splitlines()
