"""The examples run, and show what they say."""

import difflib
import runpy
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from nestling.experiment import find, run
from nestling.methods import make
from tests.processes import call

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_a_part_of_ones_own_is_named_on_the_command_line(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    experiment = find("heterofl-digits").with_settings(
        ["method=stripes:stripes", "options.shift=3", "rounds=1", "local.epochs=1"]
    )
    result = run(experiment)
    assert result.summary["method"] == "stripes"
    assert any(
        (0 in counts and counts[0] == 0) or len(set(counts)) > 1 for counts in result.summary["coverage"].values()
    )
    assert make("stripes:stripes", {"shift": 2}).plan.shift == 2


@pytest.mark.parametrize("name", ["stripes", "own_method", "own_task", "own_data"])
def test_what_is_ones_own_is_one_short_file(name):
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) <= 40


@pytest.mark.slow
@pytest.mark.parametrize(("name", "least"), [("stripes", 50), ("own_method", 50), ("own_task", 70)])
def test_parts_methods_and_tasks_of_ones_own_learn(name, least):
    printed = call([sys.executable, EXAMPLES / f"{name}.py"], check=True).stdout
    assert float(printed.partition("%")[0]) > least


def code(name):
    """The lines of an example below its docstring."""
    lines = (EXAMPLES / f"{name}.py").read_text().splitlines()
    return lines[lines.index("import torch") :]


def test_the_quick_start_shows_the_difference_between_its_scripts():
    shown = (EXAMPLES.parent / "docs" / "quickstart.md").read_text().partition("```diff\n")[2].partition("\n```")[0]
    difference = difflib.unified_diff(code("train_alone"), code("train_federated"), lineterm="", n=99)
    assert shown.splitlines() == list(difference)[3:]


@pytest.mark.slow
def test_the_scripts_of_the_quick_start(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # several threads take far longer on a busy machine
    alone = call([sys.executable, EXAMPLES / "train_alone.py"], check=True).stdout
    sizes = call([sys.executable, EXAMPLES / "train_federated.py"], check=True).stdout.split()
    assert float(alone.strip().rstrip("%")) > 85
    whole, half, quarter = (float(size.rstrip("%")) for size in sizes)
    assert whole > 80
    assert half > 60
    assert quarter > 40


@pytest.mark.slow
def test_data_of_ones_own_and_a_task_without_classes():
    printed = call([sys.executable, EXAMPLES / "own_data.py"], check=True).stdout
    assert float(printed.split()[1]) < 0.3, printed  # the curve itself has a deviation of 0.7


@pytest.mark.slow
def test_a_model_of_ones_own(capsys):
    runpy.run_path(str(EXAMPLES / "own_model.py"), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    accuracies = {line.split()[1].rstrip(":"): float(line.split()[2].rstrip("%")) for line in lines}
    assert set(accuracies) == {"a", "c"}
    assert accuracies["a"] > 60


@pytest.mark.slow
@pytest.mark.skipif(not (find_spec("peft") and find_spec("transformers")), reason="needs peft")
def test_adapters_of_different_ranks(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    lines = call([sys.executable, EXAMPLES / "lora_ranks.py", "--quick"], check=True).stdout.splitlines()
    before = float(next(line for line in lines if line.startswith("perplexity without")).split()[-1])
    rows = {
        cells[1]: cells[2:6] for cells in ([cell.strip() for cell in line.split("|")] for line in lines) if cells[2:]
    }
    assert len(rows.pop("rank 16 for all")) == 4
    smallest = float(rows.pop("rank 2 for all")[-1])
    assert smallest < before
    for fleet in ("ranks 2 to 16", "ranks 2 to 16, rolling"):
        assert max(map(float, rows[fleet])) < smallest, fleet  # at every rank
    assert float(rows["ranks 2 to 16, by factors"][0]) < smallest


@pytest.mark.slow
def test_planted_attackers_ruin_the_mean_and_no_robust_merge(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    from attackers import RULES, accuracy  # noqa: PLC0415

    assert accuracy("mean", "none", rounds=4) > 0.9
    for attack in ("sign flip", "scaled update"):
        assert accuracy("mean", attack, rounds=4) < 0.5
    figures = {(rule, "sign flip"): accuracy(rule, "sign flip", rounds=4) for rule in RULES[1:]}
    figures |= {("median", attack): accuracy("median", attack, rounds=4) for attack in ("scaled update", "label flip")}
    assert min(figures.values()) > 0.8, figures
