"""The commands `nestling data get` and `nestling data show`."""

import json

import numpy as np
import pytest
import torch
import typer
from typer.testing import CliRunner

from nestling.cli.data import data_app
from nestling.data import DATASETS
from nestling.data.catalog import Source
from nestling.errors import DataError, NestlingError
from nestling.report.partition_panel import SHOWN, draw

program = typer.Typer()
program.add_typer(data_app, name="data")


def run(*words):
    result = CliRunner().invoke(program, ["data", *map(str, words)])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_show_few_clients_one_row_each():
    shown = run("show", "digits", "--clients", 3).stdout
    assert "digits: 3 clients, iid, minimum 1, seed 0" in shown
    rows = [line.split() for line in shown.splitlines()]
    assert [row[:2] for row in rows if row[:1] and len(row) == 14] == [["0", "480"], ["1", "479"], ["2", "479"]]


def test_show_many_clients_in_summary_with_a_map():
    shown = run("show", "digits", "--clients", 50, "--partition", "classes", "--classes-per-client", 2).stdout
    for word in ("smallest (client ", "median (client ", "largest (client "):
        assert word in shown
    lines = [line for line in shown.splitlines() if " in " in line]
    assert len(lines) == 10
    for label, line in enumerate(lines):
        assert line.startswith(f"{label} ")
        assert line.endswith(" in        10")
        assert line.count("· ") == 40


def test_show_says_what_the_map_leaves_out(monkeypatch):
    def read(_paths):
        labels = np.arange(600) % 60
        inputs = np.zeros((600, 1), np.float32)
        return {"inputs": inputs, "targets": labels, "test_inputs": inputs, "test_targets": labels}

    monkeypatch.setitem(DATASETS, "sixty", Source("", 60, read))
    shown = run("show", "sixty", "--clients", 300).stdout
    assert "first 100 of 300 clients" in shown
    assert "first 50 of 60 classes" in shown


def test_show_json_is_the_partition():
    summary = json.loads(
        run("show", "digits", "--clients", 4, "--partition", "dirichlet", "--alpha", 0.5, "--json").stdout
    )
    assert summary["partition"] == {"scheme": "dirichlet", "alpha": 0.5, "minimum": 1, "seed": 0}
    assert (summary["dataset"], summary["shape"], summary["classes"]) == ("digits", [1, 8, 8], 10)
    assert sum(client["train"] for client in summary["clients"]) == summary["train"] == 1438
    assert sum(client["test"] for client in summary["clients"]) == summary["test"] == 359
    assert all(set(client["labels"]) <= set(range(10)) for client in summary["clients"])


def test_show_all_users_by_default(real):
    folder = real("uci_har_inertial.npz")
    summary = json.loads(run("show", "har", "--partition", "user", "--data-dir", folder, "--json").stdout)
    assert len(summary["clients"]) == 21


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["show", "digist"], "did you mean 'digits'"),
        (["show", "mnist", "--partition", "class"], "no partition 'class'; did you mean 'classes'"),
        (["show", "digits", "--partition", "user"], "does not name the users of its samples"),
        (["show", "digits", "--picture", "x.png"], "must be an .html file"),
        (["show", "digits", "--picture", "nowhere/x.html"], "in a folder that exists"),
        (["get", "digist"], "did you mean 'digits'"),
    ],
)
def test_bad_input_is_one_sentence(words, message):
    with pytest.raises(NestlingError, match=message) as caught:
        run(*words)
    assert "\n" not in str(caught.value)


def test_get_what_needs_no_files():
    assert "nothing to fetch" in run("get", "digits").stdout
    assert json.loads(run("get", "digits", "--json").stdout) == []


def test_help_has_examples():
    for command in ("get", "show"):
        assert f"nestling data {command} " in run(command, "--help").stdout


def test_picture_is_one_page_that_needs_nothing_else(tmp_path):
    page = tmp_path / "shares.html"
    shown = run("show", "digits", "--clients", 20, "--picture", page).stdout
    assert str(page) in shown
    text = page.read_text(encoding="utf-8")
    assert "<title>digits: who holds what – Nestling</title>" in text
    assert "20 clients, iid" in text
    assert "<script src" not in text
    assert "<link" not in text.replace('<link rel="icon" href="data:,">', "")
    assert '"kind":"map"' in text


def test_picture_of_many_clients_stays_small_and_says_so(tmp_path):
    few, many = (
        draw(torch.ones(clients, 3, dtype=torch.int64), tmp_path / f"{clients}.html", "<b> & co")
        for clients in (SHOWN, 100_000)
    )
    assert many.stat().st_size - few.stat().st_size < 1000
    assert f"the first {SHOWN} of 100,000 clients" in many.read_text(encoding="utf-8")
    assert "<title>&lt;b&gt; &amp; co – Nestling</title>" in many.read_text(encoding="utf-8")


def test_show_a_text_reads_the_clients_that_are_shown_alone():
    shown = run("show", "words", "--partition", "user").stdout
    assert "words: 342,477 clients, user, sequences of 20 of 1,000 words, next-word" in shown
    assert "the first 10 of 342,477 clients; the others were not read" in shown
    summary = json.loads(run("show", "words", "--partition", "user", "--clients", 3, "--json").stdout)
    assert [client["client"] for client in summary["first_clients"]] == [0, 1, 2]
    assert summary["vocabulary"] == 1000
    with pytest.raises(NestlingError, match="there is no picture of words"):
        run("show", "words", "--picture", "x.html")
    with pytest.raises(DataError, match=r"set data\.partition=user"):
        run("show", "words")


def test_get_of_a_text_that_needs_no_files():
    assert "nothing to fetch" in run("get", "words").stdout
