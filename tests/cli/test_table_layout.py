"""Tables fit a terminal, names and figures stay whole, and what is not shown is named."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.text import Text

from nestling.cli import screen
from nestling.cli.table_layout import lay_out

COLUMNS = {"experiment": "left", "seeds": "right", "rounds": "right", "global accuracy": "right"}
COLUMNS |= {"worst accuracy": "right", "data sent": "right", "time": "right"}
ROWS = [
    ["fedavg-large-digits", "2", "12", "97.4 ± 0.3 %", "–", "69.1 MiB", "10.2 s"],
    ["fed-dropout-digits", "2", "12", "94.1 ± 1.2 %", "81.9 ± 2.5 %", "18.4 MiB", "9.8 s"],
    ["heterofl-digits", "2", "12", "95.5 ± 0.8 %", "89.0 ± 0.7 %", "18.4 MiB", "9.9 s"],
]


@pytest.fixture
def terminal(monkeypatch, capsys):
    """Print a table on a terminal of some columns; return what is on the screen, without colours."""

    def show(width, *table, colour=False, **options):
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setenv("TERM", "xterm-256color")
        for name in ("NO_COLOR", "FORCE_COLOR"):
            monkeypatch.delenv(name, raising=False)
        if colour is None:
            monkeypatch.setenv("NO_COLOR", "1")
        monkeypatch.setattr("sys.stdout.isatty", lambda: True)
        screen.print_table(*table, **options)
        printed = capsys.readouterr().out
        return printed if colour or colour is None else re.sub(r"\x1b\[[\d;]*m", "", printed)

    return show


def test_a_table_that_fits_is_left_alone():
    assert lay_out(COLUMNS, ROWS, 120, []).grid.headings == tuple(COLUMNS)


def test_headings_fold_first():
    layout = lay_out(COLUMNS, ROWS, 85, ["time"])
    assert layout.grid.headings[3:] == ("global\naccuracy", "worst\naccuracy", "data\nsent", "time")
    assert len(layout.grid.headings) == len(COLUMNS)
    assert layout.notes == ()


def test_a_table_of_few_rows_turns_on_its_side():
    layout = lay_out(COLUMNS, ROWS[:2], 60, ["time"])
    assert layout.grid.headings == ("experiment", "fedavg-large-digits", "fed-dropout-digits")
    assert layout.grid.rows[2] == ("global accuracy", "97.4 ± 0.3 %", "94.1 ± 1.2 %")
    assert len(layout.grid.rows) == len(COLUMNS) - 1


def test_what_is_equal_in_all_rows_moves_below_and_what_matters_least_is_left_out_by_name():
    layout = lay_out(COLUMNS, ROWS, 60, ["time", "worst accuracy"])
    assert layout.grid.headings[0] == "experiment"
    assert layout.notes[0] == "the same in all rows: seeds 2, rounds 12"
    assert layout.notes[1] == "not shown, as the terminal has 60 columns: time"
    assert layout.grid.width <= 60


def test_texts_fold_between_words():
    columns = {"name": "left", "about": "text"}
    layout = lay_out(columns, [["cnn", "four convolutions with batch norm and a long-winded description"]], 40, [])
    lines = layout.grid.rows[0][1].split("\n")
    assert len(lines) == 2
    assert " ".join(lines).endswith("a long-winded description")


def test_rows_become_records_where_names_leave_no_room(terminal):
    name = "heterofl-cifar10-classes2-a0.06-b0.10-c0.11-d0.18-e0.55-laptop (local.lr=0.05)"
    shown = terminal(60, COLUMNS, [[name, *ROWS[0][1:]]])
    assert name in shown.splitlines()
    for heading, figure in zip(list(COLUMNS)[1:], ROWS[0][1:], strict=True):
        assert f"{heading} {figure}" in " ".join(shown.split())


def test_at_80_columns_names_and_figures_are_whole(terminal):
    shown = terminal(80, COLUMNS, ROWS, least=["time"])
    assert all(len(line) <= 80 for line in shown.splitlines())
    for name, *figures in ROWS:
        (line,) = [line for line in shown.splitlines() if line.startswith(name)]
        assert figures[2] in line


def test_no_color_is_respected(terminal):
    bold = [[Text("a", "bold green"), "1"]]
    assert "\x1b[1;32m" in terminal(80, {"name": "left", "n": "right"}, bold, colour=True)
    assert not re.search(r"\x1b\[[\d;]*3\dm", terminal(80, {"name": "left", "n": "right"}, bold, colour=None))


WORDS = st.text("abcdé-", min_size=1, max_size=9)
HEADINGS = st.lists(st.text("ABCDÉ-", min_size=2, max_size=9), min_size=1, max_size=2).map(" ".join)
NAMES = st.text("xyz-", min_size=1, max_size=30)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(HEADINGS, st.sampled_from(["left", "right", "text"])), max_size=6, unique_by=lambda one: one[0]),
    st.data(),
    st.integers(30, 130),
)
def test_nothing_is_cut_and_nothing_is_left_out_unsaid(others, data, width):
    columns = {"NAME": "left"} | dict(others)
    texts = st.lists(WORDS, min_size=1, max_size=8).map(" ".join)
    row = st.tuples(NAMES, *(texts if side == "text" else NAMES for side in list(columns.values())[1:]))
    rows = data.draw(st.lists(row, max_size=5, unique_by=lambda one: one[0]))
    layout = lay_out(columns, rows, width, [])
    if layout.records:
        assert layout.grid.rows == tuple(rows)
        return
    assert layout.grid.width <= width or (not rows and len(columns) <= 3)
    shown = [*layout.grid.headings, *(cell for line in layout.grid.rows for cell in line)]
    whole = {" ".join(str(cell).split("\n")) for cell in shown}
    said = " ".join(layout.notes)
    for place, heading in enumerate(columns):
        assert heading in whole or f" {heading}" in said
        if heading in whole:
            assert all(" ".join(line[place].split()) in {" ".join(cell.split()) for cell in whole} for line in rows)
