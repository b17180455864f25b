"""Grids of experiments: which values a setting has, which runs there are, and where they lie."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nestling.errors import ConfigError
from nestling.experiment.grid import MAX_RUNS, grid_runs, split_values
from nestling.settings import Experiment

OUT = Path("out")


def runs(*settings, seeds=1):
    return grid_runs(Experiment(), settings, seeds=seeds, folder=OUT)


@given(st.lists(st.sampled_from(["0.1", "a-e", "[1, [2, 3]]", "{a = 1, b = 2}", "'a,b'", '"[,"', "module:factory"])))
def test_values_come_back_from_the_list_that_they_make(values):
    assert split_values(",".join(values)) == (values or [""])


def test_every_combination_has_every_seed_and_a_place_of_its_own():
    grid = runs("local.lr=0.1,0.2", "rounds=7", "method=heterofl,fedrolex", seeds=2)
    assert len({run.folder for run in grid}) == len(grid) == 8
    assert [(run.experiment.local.lr, run.experiment.method, run.experiment.seed) for run in grid] == [
        (lr, method, seed) for lr in (0.1, 0.2) for method in ("heterofl", "fedrolex") for seed in (0, 1)
    ]
    assert all(run.experiment.rounds == 7 for run in grid)
    assert grid[0].folder == OUT / "local.lr=0.1,method=heterofl" / "seed-0"


def test_places_stay_when_the_grid_grows_or_its_settings_change_places():
    small = {run.folder for run in runs("local.lr=0.1,0.2", "method=heterofl,fedrolex")}
    large = {run.folder for run in runs("method=fedavg,fedrolex,heterofl", "local.lr=0.20,0.3,0.1", seeds=3)}
    assert small < large


def test_places_of_values_that_are_no_file_names_differ():
    grid = runs("data.name=a/b,a:b", f"model.name=m:{'x' * 300},m:{'x' * 301}")
    names = [run.folder.parent.name for run in grid]
    assert len(set(names)) == 4
    assert all(len(name) < 200 and "/" not in name and ":" not in name for name in names)


def test_seeds_may_be_named():
    assert [run.folder for run in runs("seed=3,5", "local.lr=0.1")] == [
        OUT / "heterofl-digits" / "seed-3",
        OUT / "heterofl-digits" / "seed-5",
    ]


def test_one_value_changes_all_runs():
    (run,) = runs("local.milestones=[10, 20]", "name=mine")
    assert run.experiment.local.milestones == (10, 20)
    assert (run.folder, run.label) == (OUT / "mine" / "seed-0", "")


@pytest.mark.parametrize(
    ("settings", "seeds", "words"),
    [
        (["local.lr"], 1, "'local.lr' is not a setting"),
        (["local.lr=0.1,,0.2"], 1, "'local.lr=0.1,,0.2' has an empty value"),
        (["local.lr=0.1", "local.lr=0.2"], 1, "local.lr is given twice"),
        (["local.lr=0.1,0.10"], 1, "'local.lr=0.1' and 'local.lr=0.10' are the same experiment"),
        (["local.lr=0.1,-1", "rounds=5,6"], 1, "local.lr=-1 rounds=5: the setting local.lr must be above 0"),
        (["local.lrr=0.1,0.2"], 1, "local.lrr=0.1: "),
        (["workers=1,2"], 1, "workers cannot change the results"),
        (["seed=1,2"], 3, "seed=… and --seeds 3 do not go together"),
        (["rounds=" + ",".join(map(str, range(1, 102)))], 10, "1,010 runs (101 × 10 seeds)"),
    ],
)
def test_bad_grids_are_refused_in_one_sentence(settings, seeds, words):
    with pytest.raises(ConfigError) as caught:
        runs(*settings, seeds=seeds)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_largest_grid_is_accepted():
    assert len(runs("rounds=" + ",".join(map(str, range(1, 101))), seeds=10)) == MAX_RUNS
