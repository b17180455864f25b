"""`nestling cost` of mixes and of methods' sub-models: the figures that the papers print."""

import json

import pytest

from nestling.cli import main
from tests.quick import mostly_slow


def costs(capsys, *args):
    assert main(["cost", *args, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_means_of_a_mix_are_those_of_heterofls_table_1(capsys):
    rows = costs(capsys, "--model", "cnn", "--levels", "a-b-c-d-e")
    mean = rows[-1]
    assert [row["level"] for row in rows] == ["a", "b", "c", "d", "e", "a-b-c-d-e"]
    assert (round(mean["ratio"], 2), round(mean["parameters"] / 1e3, 1)) == (0.27, 415.8)
    assert round(mean["space"] / 2**20, 2) == 1.59
    assert mean["macs"] == pytest.approx(sum(row["macs"] for row in rows[:-1]) / 5)
    assert all(row["flops"] == 2 * row["macs"] for row in rows)


def test_a_mix_may_have_shares_and_its_ratio_is_that_to_its_own_largest_level(capsys):
    for mix, ratio in (("b-e", 0.51), ("b1-e9", (0.1 * 391_370 + 0.9 * 6594) / 391_370)):
        *levels, mean = costs(capsys, "--model", "cnn", "--levels", mix)
        assert mean["ratio"] == pytest.approx(ratio, abs=0.005)
        assert levels[0]["ratio"] == 1
        assert sum(row["clients"] for row in levels) == pytest.approx(1)


@pytest.mark.parametrize(
    ("variant", "parameters", "macs"), mostly_slow([("WD", 6.71, 87.8), ("W", 6.71, 85), ("D", 6.68, 102)], quick=1)
)  # NeFL, Table 8
def test_nefls_submodels_of_resnet18_have_the_means_of_table_8(capsys, variant, parameters, macs):
    mix = ["--levels", "0.2-0.4-0.6-0.8-1", "--method", "nefl", f"options.variant={variant}"]
    *rows, mean = costs(capsys, "--model", "resnet18", *mix)
    assert mean["parameters"] / 1e6 == pytest.approx(parameters, abs=0.011)
    assert mean["macs"] / 1e6 == pytest.approx(macs, abs=0.5)
    assert {row["submodel"] for row in rows[:-1]} == {"square root of γ" if variant == "W" else "table resnet18"}


def test_levels_in_a_list_are_no_mix(capsys):
    rows = costs(capsys, "--model", "resnet18", "--levels", "0.6,1", "--method", "nefl")
    assert [row["level"] for row in rows] == ["0.6", "1"]
    assert not {"clients", "ratio"} & rows[0].keys()


def test_the_table_of_a_mix_ends_with_its_means(capsys):
    assert main(["cost", "--model", "mlp", "--levels", "a-e", "--method", "depthfl"]) == 2  # it has no blocks
    capsys.readouterr()
    assert main(["cost", "--model", "mlp", "--levels", "a-e"]) == 0
    header, _, _, _, mean, *_ = capsys.readouterr().out.splitlines()
    assert header.replace("2 × ", "").split()[:6] == ["level", "width", "clients", "ratio", "parameters", "size"]
    assert mean.split()[:2] == ["a-e", "1"]


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["options.variant=D"], "is an option of a method: name it, such as --method nefl"),
        (["--method", "nefl", "variant=D"], "'variant=D' is no option of a method: write options.variant=D"),
        (["--method", "nefl", "options.variant=X"], "variant"),
        (["--method", "fedpruned"], "fedpruned trains the same slice at all levels: use --levels a"),
        (["--method", "nefle"], "nefl"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_sentence(capsys, args, sentence):
    assert main(["cost", "--model", "resnet18", *args]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert sentence in err
