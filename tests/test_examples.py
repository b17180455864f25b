"""The examples run, and show what they say."""

import runpy
import sys
from pathlib import Path

from processes import call

from nestling.experiment import find, run
from nestling.methods import make

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_a_method_of_ones_own_is_one_short_file(monkeypatch):
    assert len((EXAMPLES / "stripes.py").read_text().splitlines()) <= 40
    assert float(call([sys.executable, EXAMPLES / "stripes.py"], check=True).stdout.partition("%")[0]) > 50
    monkeypatch.syspath_prepend(str(EXAMPLES))
    experiment = find("heterofl-digits").with_settings(
        ["method=stripes:stripes", "options.shift=3", "rounds=1", "local.epochs=1"]
    )
    result = run(experiment)
    assert result.summary["method"] == "stripes"
    assert any(
        (0 in counts and counts[0] == 0) or len(set(counts)) > 1 for counts in result.summary["coverage"].values()
    )
    assert make("stripes:stripes", {"shift": 2}).plan.keywords == {"shift": 2}


def test_a_model_of_ones_own(capsys):
    runpy.run_path(str(EXAMPLES / "own_model.py"), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    accuracies = {line.split()[1].rstrip(":"): float(line.split()[2].rstrip("%")) for line in lines}
    assert set(accuracies) == {"a", "c"}
    assert accuracies["a"] > 60
