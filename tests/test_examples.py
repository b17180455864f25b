"""The demo runs, learns, and gives the same numbers each time."""

import json
import subprocess
import sys
from pathlib import Path

DEMO = Path(__file__).parents[1] / "examples" / "digits.py"


def demo(*options):
    done = subprocess.run([sys.executable, DEMO, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def results(*options):
    return [{**row, "seconds": None} for row in json.loads(demo("--json", *options))]


def test_same_seed_same_numbers():
    first = results("--rounds", "2")
    assert first == results("--rounds", "2")
    assert first != results("--rounds", "2", "--seed", "1")


def test_slices_learn():
    by_way = {row["way"]: row["curve"] for row in results("--rounds", "5")}
    for way in ("every device its slice", "… in rolling windows"):
        assert by_way[way][-1] > 0.8 > by_way[way][0]  # chance is 0.1


def test_the_table_is_for_people():
    out = demo("--rounds", "1")
    assert "proved" in out
    assert "every device its slice" in out
    assert "170,058" in out
