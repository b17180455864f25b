"""``nestling check``: what to do about frozen axes, and the drawing of nested sizes."""

import ast
import json
import re
from pathlib import Path

import pytest

import nestling.axes
from nestling.axes.remedies import _REMEDIES, remedy
from nestling.cli import main
from nestling.report.nested_sizes import NestedAxis, draw_nested

WRITTEN = """
import torch
from torch import nn

class Written(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(4, 8), nn.Linear(8, 6), nn.Linear(6, 2)
    def forward(self, x):
        return self.last(self.middle(self.first(x) + torch.arange(8.0)).relu())

def make(): return Written(), torch.randn(2, 4)
"""


def test_the_drawing_shows_what_is_cut_and_what_is_frozen(tmp_path, monkeypatch, capsys):
    (tmp_path / "owls.py").write_text(WRITTEN)
    monkeypatch.chdir(tmp_path)
    assert main(["check", "owls:make", "--plot", "sizes.svg", "--json"]) == 0
    frozen = {row["name"]: row for row in json.loads(capsys.readouterr().out)["frozen"]}
    assert frozen["first"]["why"] == "meets a constant of the model's code"
    assert frozen["first"]["remedy"].startswith("let the code read the size")
    assert frozen["last"]["remedy"].startswith("nothing")
    picture = Path("sizes.svg").read_text()
    assert "owls:make: nested sizes" in picture
    assert "frozen: meets a constant" in picture
    (middle,) = (line for line in picture.splitlines() if ">middle<" in line)
    bars = picture.splitlines()[picture.splitlines().index(middle) + 1 :][:5]
    widths = [float(re.search(r"width='([\d.]+)'", bar)[1]) for bar in bars]
    assert widths == pytest.approx([340, 170, 340 * 2 / 6, 340 / 6, 340 / 6], abs=0.1)  # 6, 3, 2, 1, 1 of 6 units


def test_many_axes_are_counted():
    axes = [NestedAxis(f"stage.{k}.convolution.of.a.long.name", 8, (8, 1)) for k in range(46)]
    picture = draw_nested("net", {"a": 100, "d": 3}, axes)
    assert "and 6 more axes" in picture
    assert picture.count("of.a.long.name") == 40
    assert "stage.39.con…" in picture


def test_every_reason_in_the_code_has_a_remedy():
    reasons = set()
    for path in Path(nestling.axes.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                name = getattr(node.func, "id", getattr(node.func, "attr", ""))
                if name in ("freeze", "constant", "freeze_on_use", "Clash", "Node"):
                    for value in node.args:
                        first = value.values[0] if isinstance(value, ast.JoinedStr) else value
                        if (
                            isinstance(first, ast.Constant)
                            and isinstance(first.value, str)
                            and first.value not in ("", "output", "input")
                        ):
                            reasons.add(first.value)
    assert len(reasons) >= 20
    given_by_hand = _REMEDIES[-1][1]
    unknown = [reason for reason in reasons if remedy(reason) == given_by_hand and reason != "declared as a number"]
    assert not unknown
