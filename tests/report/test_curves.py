"""Learning curves: means over seeds, only where all seeds have a value, and never too many points."""

import itertools
import json

import pytest

from nestling.report import experiments, find
from nestling.report.curves import curve, learning_curves
from tests.report import report_runs


@pytest.fixture(scope="module")
def groups(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for method in ("heterofl", "fedrolex"):
        for seed in range(2):
            report_runs.make(folder, method, seed, rounds=8)
    return experiments(find([folder]))


def test_curves_are_means_over_seeds(groups):
    figure = learning_curves(groups)
    own = next(group for group in groups if group.runs[0].method == "heterofl")
    (line,) = [series for series in figure["series"] if series["experiment"] == own.number]
    last = [run.history[-1] for run in own.runs]
    assert line["x"]["round"] == [2, 4, 6, 8]
    assert line["y"]["worst_submodel"][-1] == pytest.approx(
        sum(entry.evaluation["worst_submodel"] for entry in last) / 2, rel=1e-5
    )
    assert line["x"]["bytes"][-1] == pytest.approx(sum(entry.bytes for entry in last) / 2, rel=1e-5)
    assert line["deviation"]["global_accuracy"][-1] > 0


def test_the_measure_that_runs_are_judged_by_is_first_and_has_its_unit(groups):
    figure = learning_curves(groups)
    measures = {measure["name"]: measure for measure in figure["measures"]}
    assert next(iter(measures)) == "global_accuracy"
    assert (measures["global_accuracy"]["unit"], measures["global_accuracy"]["better"]) == ("percent", 1)
    assert (measures["global_loss"]["unit"], measures["global_loss"]["better"]) == ("number", -1)
    assert [axis["name"] for axis in figure["axes"]] == ["round", "bytes", "macs", "seconds"]


def test_seeds_are_averaged_only_where_all_have_a_value(tmp_path):
    for seed, rounds in ((0, 8), (1, 16)):
        report_runs.make(tmp_path, seed=seed, rounds=rounds, finished=False)
        config = tmp_path / "heterofl-digits" / f"seed-{seed}" / "config.toml"
        config.write_text(config.read_text().replace(f"rounds = {rounds}", "rounds = 99"))
    (group,) = experiments(find([tmp_path]))
    assert curve(group, ["global_accuracy"])["x"]["round"] == [2, 4]


def test_a_value_that_a_seed_lacks_is_a_gap(tmp_path):
    for seed in range(2):
        directory = report_runs.make(tmp_path, seed=seed, rounds=8)
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    lines[3]["evaluation"]["local_accuracy"] = None
    (directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (group,) = experiments(find([tmp_path]))
    track = curve(group, ["global_accuracy", "local_accuracy"])
    assert [value is None for value in track["y"]["local_accuracy"]] == [False, True, False, False]
    assert None not in track["y"]["global_accuracy"]


def test_long_runs_are_thinned_and_keep_their_ends(tmp_path):
    directory = report_runs.make(tmp_path, rounds=2)
    (first, _) = (json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines())
    evaluation = {"global_accuracy": 0.5}
    lines = [first | {"round": number, "evaluation": evaluation} for number in range(1, 2001)]
    (directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (series,) = learning_curves(experiments(find([tmp_path])))["series"]
    rounds = series["x"]["round"]
    assert len(rounds) == 400
    assert (rounds[0], rounds[-1]) == (1, 2000)
    assert {later - earlier for earlier, later in itertools.pairwise(rounds)} == {5, 6}
