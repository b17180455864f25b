"""``nestling fit``: the table, its file, its picture, and what is refused."""

import json
import tomllib

import pytest

import nestling
from nestling.cli import main
from nestling.settings import Evaluate
from tests.run_cases import small


def call(capsys, *words):
    code = main(["fit", *words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_table_and_the_file(capsys, tmp_path):
    file = tmp_path / "fleet.toml"
    words = ["resnet8", "--set", "widths=4,4,4,4", "--budget", "6 kB, 50 kMACs", "--budget", "phone: 1 MB memory"]
    code, out, _ = call(capsys, *words, "--batch", "4", "--out", str(file), "--json")
    assert code == 0
    rows = json.loads(out)
    assert [row["name"] for row in rows] == ["6 kB, 50 kMACs", "phone"]
    assert rows[0]["bytes"] <= 6_000
    assert rows[0]["macs"] <= 50_000
    assert rows[1]["memory"] <= 1_000_000
    assert rows[0]["seconds"] is None
    assert 0 < rows[0]["blocks"] <= rows[0]["all_blocks"]
    written = tomllib.loads(file.read_text())["device"]
    assert [(entry["name"], entry["budget"]) for entry in written] == [(r["name"], r["budget"]) for r in rows]
    assert json.loads(written[0]["fit"]["plan"]) == rows[0]["plan"]
    assert nestling.Plan.from_json(written[0]["fit"]["plan"]).sizes
    code, out, _ = call(capsys, "mlp", "--budget", "phone: 20 kB")
    assert code == 0
    assert "phone" in out.splitlines()[2]


def test_devices_are_budgets_of_memory(capsys):
    _, out, _ = call(capsys, "mlp", "--device", "sensor", "--json", "--by", "width")
    (row,) = json.loads(out)
    assert row["memory"] <= 8 * 2**20


@pytest.mark.slow
def test_a_run_is_fitted_with_its_own_method_and_drawn(capsys, tmp_path):
    nestling.run(small(rounds=1, evaluate=Evaluate(every=1, samples=50)), out=tmp_path / "run")
    code, out, _ = call(
        capsys, str(tmp_path / "run"), "--budget", "phone: 30 kB", "--plot", str(tmp_path / "sizes.svg"), "--json"
    )
    assert code == 0
    (row,) = json.loads(out)
    assert row["bytes"] <= 30_000
    assert row["by"] == "heterofl"
    assert 0 <= row["value"] <= 1
    picture = (tmp_path / "sizes.svg").read_text()
    assert "phone" in picture
    assert picture.count("<circle") == 2 * (3 + 1) + 2  # a point per level and budget in both panels, and the legend


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["cnn"], "fit needs a budget, such as --budget '2 MB, 50 MMACs'"),
        (["cnn", "--budget", "2 parsecs"], "the budget '2 parsecs' cannot be read"),
        (["cnn", "--budget", "1 MB", "--budget", "1 MB"], "the budget '1 MB' is given twice"),
        (["cnn", "--device", "fridge"], "there is no device 'fridge'"),
        (["cnn", "--budget", "10 B"], "the smallest possible has 336 B"),
        (["cnn", "--budget", "1 MB", "--by", "magic"], "there is no way 'magic' of cutting a model"),
        (["cnn", "--budget", "1 MB", "--by", "depth"], "the model has no blocks that can be dropped"),
        (["cnn", "--budget", "1 MB", "--plot", "x.svg"], "give a run directory, not 'cnn'"),
        (["cnn", "--budget", "1 MB", "--batch", "0"], "a batch has at least 1 sample"),
    ],
)
def test_what_is_refused(capsys, words, message):
    code, out, err = call(capsys, *words)
    assert (code, out) == (2, "")
    assert message in " ".join(err.split())
