"""The results in docs/results: runs of presets with today's settings, from which the tables of docs are made."""

import importlib.util
import re
from pathlib import Path

import pytest

from nestling.experiment.presets import PRESETS
from nestling.experiment.reproductions import find
from nestling.experiment.reproductions.definitions import SCALES, presets_of
from nestling.experiment.reproductions.finished_runs import check_settings, read_results, write_results

DOCS = Path(__file__).parents[1] / "docs"
FILES = sorted((DOCS / "results").glob("*.json"))


def by_name(paths):
    return [pytest.param(path, id=path.stem) for path in paths]


@pytest.fixture
def tables(monkeypatch):
    """The script that fills the tables, in the folder where it is run."""
    monkeypatch.chdir(DOCS.parent)
    spec = importlib.util.spec_from_file_location("fill_tables", DOCS / "fill_tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_there_are_results():
    assert sum(len(read_results(path)) for path in FILES) >= 10


@pytest.mark.parametrize("path", by_name(FILES))
def test_committed_runs_are_runs_of_the_table_with_todays_settings(path, tmp_path):
    table = find(path.stem)
    presets = {name for row in table.rows for scale in SCALES for name in presets_of(row, scale).values()}
    runs = read_results(path)  # none in the file of a table that waits for its first run
    for (preset, seed), run in runs.items():
        assert preset in presets
        check_settings(run, PRESETS[preset]().with_settings([*table.settings, f"seed={seed}"]), path.name)
        assert run.best["round"] in run.curve["round"]
        assert run.curve["round"][-1] == run.final["round"] == run.settings["rounds"]
    write_results(tmp_path / "again.json", runs.values())
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()
    assert path.stat().st_size < 5000 * len(runs) + 100


def test_tables_are_what_their_commands_print(tables):
    text = tables.DOCUMENT.read_text(encoding="utf-8")
    commands = re.findall(r"<!-- nestling reproduce (\S+)", text)
    assert {path.stem for path in FILES} <= set(commands)
    assert tables.filled(text) == text


def test_a_table_with_another_number_is_noticed(tables):
    whole = tables.DOCUMENT.read_text(encoding="utf-8")
    text = re.search(r"<!-- nestling reproduce digits-demo.*?<!-- end -->", whole, re.DOTALL)[0]
    digit = re.search(r"\d\d\.\d\d", text).start()
    changed = f"{text[:digit]}{9 - int(text[digit])}{text[digit + 1 :]}"
    assert tables.filled(changed) == text


def test_a_command_that_fails_ends_the_script(tables, capsys):
    del capsys
    with pytest.raises(SystemExit, match="'nestling reproduce nothing' failed"):
        tables.filled("<!-- nestling reproduce nothing -->\n<!-- end -->")
