"""`nestling reproduce` and `nestling list reproductions` as people and scripts use them."""

import json
import shutil
import signal
import sys
from xml.etree import ElementTree

import pytest

from nestling.cli import main
from tests.processes import start, wait_until

QUICK = ["local.epochs=1", "data.max_samples=300", "evaluate.every=1", "evaluate.samples=100", "fleet.per_round=3"]


def nestling(capsys, *args):
    code = main(args)
    streams = capsys.readouterr()
    return code, streams.out, streams.err


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The folder of a demo that ran with two seeds."""
    folder = tmp_path_factory.mktemp("demo") / "out"
    assert main(["reproduce", "digits-demo", *QUICK, "rounds=2", "--seeds", "2", "--out", str(folder)]) == 0
    return folder


def again(capsys, folder, *more):
    return nestling(capsys, "reproduce", "digits-demo", *QUICK, "rounds=2", "--seeds", "2", "--out", str(folder), *more)


def test_the_demo_leaves_tables_a_figure_and_results(demo):
    names = {path.name for path in demo.iterdir()} - {".lock"}
    runs = {"fedavg-large-digits", "heterofl-digits", "fedavg-small-digits"}
    assert names == runs | {"table.json", "table.md", "table.tex", "figure.svg", "results.json"}
    table = json.loads((demo / "table.json").read_text())
    assert [row["label"] for row in table["rows"]] == [["FedAvg, largest"], ["HeteroFL"], ["FedAvg, smallest"]]
    assert [row["seeds"] for row in table["rows"]] == [[2], [2], [2]]
    accuracy = table["rows"][0]["cells"][table["columns"].index("Global")]["best"]
    summaries = [json.loads((demo / f"fedavg-large-digits/seed-{n}/summary.json").read_text()) for n in (0, 1)]
    assert accuracy["values"] == [summary["best"]["global_accuracy"] for summary in summaries]
    assert len(json.loads((demo / "results.json").read_text())["runs"]) == 6
    ElementTree.parse(demo / "figure.svg")  # is well-formed


def test_a_finished_one_is_read_and_printed_in_every_format(demo, capsys):
    before = {path: path.stat().st_mtime_ns for path in demo.rglob("summary.json")}
    code, out, err = again(capsys, demo)
    assert (code, err) == (0, "")
    assert "HeteroFL" in out
    assert "±" in out
    code, out, _ = again(capsys, demo, "--format", "markdown")
    assert out.count("\n| ") == 5
    code, out, _ = again(capsys, demo, "--format", "latex")
    assert r"\begin{tabular}{lrrrrrrr}" in out
    code, out, _ = again(capsys, demo, "--json")
    assert json.loads(out) == json.loads((demo / "table.json").read_text())
    assert {path: path.stat().st_mtime_ns for path in demo.rglob("summary.json")} == before


def test_a_dry_run_counts_what_is_left_and_writes_nothing(demo, tmp_path, capsys):
    code, out, _ = again(capsys, demo, "--dry-run", "--json")
    assert json.loads(out)["total"] == {"finished": 6, "to_run": 0, "client_macs": 0, "bytes": 0, "hours": 0}
    code, out, _ = again(capsys, tmp_path / "new", "--dry-run", "--json", "--rows", "HeteroFL")
    record = json.loads(out)
    assert (code, [row["to_run"] for row in record["runs"]], record["total"]["hours"]) == (0, [2], None)
    assert record["total"]["client_macs"] > 0
    assert not (tmp_path / "new").exists()
    code, out, _ = again(capsys, tmp_path / "new", "--dry-run")
    assert out.splitlines()[-3].split()[0] == "total"


def test_another_machine_goes_on_with_the_results(demo, tmp_path, capsys):
    folder = tmp_path / "elsewhere"
    code, out, err = again(capsys, folder, "--results", str(demo / "results.json"), "--json")
    assert (code, err.startswith("written to")) == (0, True)
    assert json.loads(out) == json.loads((demo / "table.json").read_text())
    assert not list(folder.rglob("summary.json"))


def test_only_some_columns_are_run_and_printed(demo, tmp_path, capsys):
    args = ["--results", str(demo / "results.json"), "--columns", "Parameters,Global", "--json"]
    table = json.loads(again(capsys, tmp_path / "new", *args)[1])
    assert table["columns"] == ["Parameters", "Global"]
    whole = json.loads((demo / "table.json").read_text())
    places = [whole["columns"].index(name) for name in table["columns"]]
    for row, other in zip(table["rows"], whole["rows"], strict=True):
        assert row["cells"] == [other["cells"][place] for place in places]
    code, out, _ = nestling(capsys, "reproduce", "digits-demo", "--columns", "Ratio", "--out", str(tmp_path / "none"))
    assert (code, "HeteroFL" in out, (tmp_path / "none").exists()) == (0, True, False)  # costs need no run


def test_finished_runs_alone_are_shown_and_saved(demo, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    part = tmp_path / "part"
    shutil.copytree(demo / "heterofl-digits", part / "heterofl-digits")
    shutil.rmtree(part / "heterofl-digits" / "seed-0")
    common = ["reproduce", "digits-demo", *QUICK, "rounds=2", "--finished-only", "--json"]
    saved = tmp_path / "docs" / "results.json"
    code, out, err = nestling(capsys, *common, "--out", str(part), "--save-results", str(saved))
    assert (code, err) == (0, "")
    table = json.loads(out)
    assert [row["seeds"] for row in table["rows"]] == [[0], [1], [0]]
    whole = json.loads((demo / "table.json").read_text())
    place = whole["columns"].index("Global")
    best = [row["cells"][place]["best"] for row in table["rows"]]
    assert (best[0], best[2]) == (None, None)
    assert best[1]["values"] == whole["rows"][1]["cells"][place]["best"]["values"][1:]
    assert [path.name for path in part.iterdir()] == ["heterofl-digits"]  # nothing was written there
    code, out, _ = nestling(capsys, *common, "--results", str(saved))
    assert (code, json.loads(out)) == (0, table)
    assert {path.name for path in tmp_path.iterdir()} == {"part", "docs"}
    code, out, err = nestling(capsys, *common, "local.lr=3", "--results", str(saved))
    assert (code, out) == (2, "")
    assert f"{saved} holds heterofl-digits (seed 1) with other settings (local.lr)" in err


def test_the_saved_list_grows_from_call_to_call_and_holds_runs_of_the_table_alone(demo, tmp_path, capsys):
    saved, foreign = tmp_path / "saved.json", tmp_path / "foreign.json"
    lists = ["--results", str(saved), "--save-results", str(saved)]
    for given in (["--results", str(demo / "results.json"), *lists], lists):  # at first there is no such file
        assert again(capsys, tmp_path / "new", *given, "--finished-only")[0] == 0
        assert len(json.loads(saved.read_text())["runs"]) == 6
    foreign.write_text(saved.read_text().replace("fedavg-small-digits", "fedprox-digits"))
    assert again(capsys, tmp_path / "new", "--results", str(foreign), *lists[2:], "--finished-only")[0] == 0
    assert {run["preset"] for run in json.loads(saved.read_text())["runs"]} == {
        "fedavg-large-digits",
        "heterofl-digits",
    }
    code, _, err = again(capsys, tmp_path / "new", "--results", str(tmp_path / "none.json"), "--finished-only")
    assert (code, "none.json' cannot be read: No such file" in err) == (2, True)


@pytest.mark.slow
def test_settings_of_a_table_are_those_of_its_runs(tmp_path, capsys):
    changes = ["data.name=digits", "data.max_samples=200", "rounds=1", "evaluate.norm_clients=1"]
    args = ["--columns", "High Local", "--rows", "CIFAR-10/Homogeneous (smallest)", "--out", str(tmp_path / "out")]
    code, out, _ = nestling(capsys, "reproduce", "fedrolex-table4", *changes, *args, "--json")
    assert code == 0
    (summary,) = (tmp_path / "out").rglob("summary.json")
    assert json.loads(summary.read_text())["command"].split()[-1] == "evaluate.local=own-data"
    assert json.loads(out)["rows"][0]["cells"][0]["best"] is not None


def test_what_cannot_be_is_refused_in_one_sentence(tmp_path, capsys):
    for args, sentence in (
        (["heterofl-table99"], "there is no reproduction 'heterofl-table99'; did you mean"),
        (["digits-demo", "--scale", "paper"], "digits-demo exists at scale laptop, not at 'paper'"),
        (["digits-demo", "--rows", "FedSGD"], "digits-demo has no row 'FedSGD'"),
        (["digits-demo", "--columns", "Globl"], "digits-demo has no column 'Globl'; did you mean 'Global'"),
        (["digits-demo", "rounds=0"], "the setting rounds cannot be 0"),
        (["digits-demo", "--results", str(tmp_path / "no.json")], "no.json' cannot be read: No such file"),
    ):
        code, out, err = nestling(capsys, "reproduce", *args, "--out", str(tmp_path / "out"))
        assert (code, out) == (2, "")
        assert sentence in err
        assert not (tmp_path / "out").exists()


def test_the_list_names_every_table_with_what_it_needs(capsys):
    code, out, _ = nestling(capsys, "list", "reproductions", "--json")
    listed = {entry["name"]: entry for entry in json.loads(out)}
    assert code == 0
    assert listed["heterofl-table1"]["data"] == ["mnist"]
    assert listed["heterofl-table1"]["scales"]["paper"]["rows"] == 15
    hours = {name: entry["scales"]["laptop"]["hours"] for name, entry in listed.items() if "laptop" in entry["scales"]}
    assert 0 < hours["digits-demo"] < 0.1 < hours["heterofl-figure4"]
    assert listed["heterofl-table1"]["columns"][:2] == ["Ratio", "Parameters"]
    assert listed["heterofl-table1"]["scales"]["paper"]["client_macs"] > 1e15
    assert "there is no preset" in listed["heterofl-table3"]["rows"][0]["runs"]["evening"]["missing"]
    code, out, _ = nestling(capsys, "list", "reproductions", "nefl")
    assert "NeFL, Table 1 of the preprint" in out


@pytest.mark.slow
def test_a_killed_reproduction_goes_on_to_the_same_table(tmp_path):
    args = ["reproduce", "digits-demo", *QUICK, "rounds=6", "checkpoint_every=2", "--rows", "HeteroFL"]
    args += ["--rows", "FedAvg, smallest"]
    assert main([*args, "--out", str(tmp_path / "whole")]) == 0
    with start([sys.executable, "-m", "nestling", *args, "--out", str(tmp_path / "cut")]) as process:
        first = tmp_path / "cut" / "heterofl-digits" / "seed-0" / "metrics.jsonl"
        wait_until(lambda: first.exists() and first.read_bytes().count(b"\n") >= 2)
        process.send_signal(signal.SIGKILL)
    assert not (tmp_path / "cut" / "table.json").exists()
    # the run whose parent was killed saves its rounds first, and then releases its directory
    wait_until(lambda: main([*args, "--out", str(tmp_path / "cut")]) == 0)
    for name in ("table.json", "table.md", "table.tex", "figure.svg"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    whole, cut = (json.loads((tmp_path / name / "results.json").read_text())["runs"] for name in ("whole", "cut"))
    assert [run | {"seconds": 0} for run in cut] == [run | {"seconds": 0} for run in whole]
