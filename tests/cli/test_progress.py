"""Progress bars keep count, times and figures at 80 columns; without a terminal there are lines."""

import io
import os
import pty
import re
import sys

import pytest
from rich.console import Console, Group

from nestling.cli import main, progress
from tests.processes import start

QUICK = ["rounds=2", "local.epochs=1", "data.max_samples=300", "evaluate.every=1", "model.options.widths=[4, 8, 8]"]


def shown(bar):
    """The lines of a bar as a terminal shows them."""
    lines = bar.console.render_lines(Group(*bar.get_renderables()), pad=False)
    return ["".join(segment.text for segment in line).rstrip() for line in lines]


@pytest.fixture
def narrow(monkeypatch):
    """Bars on a terminal of 80 columns."""
    monkeypatch.setattr(progress, "err", lambda: Console(width=80, file=io.StringIO(), force_terminal=True))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)


@pytest.mark.parametrize("label", ["first", "heterofl-cifar10-iid-a-b-c-d-e-laptop", "x" * 200])
@pytest.mark.parametrize(("count", "left"), [("12/40", 80.0), ("1000/1000", 123_456.0)])
def test_nothing_is_lost_at_80_columns(narrow, label, count, left):
    bar = progress.TwoLineProgress()
    task = bar.add(label)
    text = "training client 3 of 10 · loss 0.312 · accuracy 93.4% · 12.3 MiB sent" + " and more" * 20
    bar.update(task, total=1.0, completed=0.5, count=count, text=text)
    bar.estimate(task, left)
    first, second = shown(bar)
    assert max(len(first), len(second)) <= 80
    assert count in first
    assert re.search(r"0:00, (1:19|1:20|34:17:3[56]) left", first)
    assert first.count("━") + first.count("╸") >= 15
    assert first.startswith(label[:11])
    assert second.startswith("training client 3 of 10 · loss 0.312 · accuracy 93.4% · 12.3 MiB sent")


def test_before_a_run_starts_the_bar_says_what_is_waited_for(narrow):
    bar = progress.ProgressBar("first")
    bar.on_phase("reading data")
    assert shown(bar._progress)[1] == "reading data"


def nestling(capsys, *args):
    code = main(args)
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_without_a_terminal_there_are_lines_and_quiet_has_none(tmp_path, capsys):
    code, _, err = nestling(capsys, "run", "heterofl-digits", *QUICK, "--out", str(tmp_path / "one"))
    assert code == 0
    assert [line.split(" · ")[0] for line in err.splitlines()[2:]] == ["round 1/2", "round 2/2"]
    code, _, err = nestling(capsys, "run", "heterofl-digits", *QUICK, "--out", str(tmp_path / "two"), "--quiet")
    assert (code, err) == (0, "")


@pytest.mark.slow
def test_several_runs_are_named_with_a_figure(tmp_path, capsys):
    folder = tmp_path / "all"
    command = ["compare", "fedavg-digits", "heterofl-digits", *QUICK, "--processes", "1", "--out", str(folder)]
    code, _, err = nestling(capsys, *command, "--no-report")
    assert code == 0
    lines = [line for line in err.splitlines() if "accuracy" in line]
    assert re.fullmatch(
        r"fedavg-digits: accuracy \d+\.\d% · 1 of 2 runs done, \d+% of the work(, about .* left)?", lines[0]
    )
    assert re.fullmatch(r"heterofl-digits: accuracy \d+\.\d% · 2 of 2 runs done, 100% of the work", lines[-1])
    assert not (folder / "progress.json").exists()
    assert nestling(capsys, *command, "--no-report")[2] == ""  # all are read


@pytest.mark.slow
@pytest.mark.parametrize("no_color", ["", "1"])
def test_a_terminal_has_a_bar_with_colours_unless_they_are_unwanted(tmp_path, no_color):
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "nestling", "run", "heterofl-digits", *QUICK, "--out", str(tmp_path / "run")]
    environment = {**os.environ, "NO_COLOR": no_color, "TERM": "xterm-256color", "COLUMNS": "80"}
    with start(command, stdout=theirs, stderr=theirs, stdin=theirs, env=environment) as process:
        os.close(theirs)
        parts = []
        while True:
            try:
                part = os.read(ours, 2**16)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            parts.append(part)
        process.wait()
    os.close(ours)
    text = b"".join(parts).decode()
    assert process.returncode == 0, text
    assert "reading data" in text
    assert "/2" in text
    colours = re.findall(r"\x1b\[(?:[0-9;]*;)?(?:3[0-8]|4[0-8]|9[0-7])[0-9;]*m", text)
    assert bool(colours) == (not no_color)
