"""What sizes cost and score, also of runs that have no summary yet."""

import pytest

import nestling
from nestling.experiment import find as preset
from nestling.report import experiments, find
from nestling.report.level_results import level_results
from tests.report import report_runs

SMALL = ["rounds=2", "evaluate.every=1", "local.epochs=1", "evaluate.norm_clients=2"]


def unfinished(folder, config):
    """The sizes of a run that has tested all levels and has no summary."""
    directory = report_runs.make(folder, finished=False)
    (directory / "config.toml").write_text(config)
    (group,) = experiments(find([folder]))
    return level_results(group)


def test_an_unfinished_run_has_the_sizes_of_its_settings(tmp_path):
    results = unfinished(tmp_path, preset("heterofl-digits").to_toml())
    assert [(result.name, result.cost.parameters) for result in results] == [
        ("a", 94_410),
        ("b", 24_170),
        ("c", 6_330),
        ("d", 1_730),
        ("e", 510),
    ]
    assert all(0 < result.value.mean < 1 for result in results)


@pytest.mark.parametrize(
    "setting", ["model.name=antigravity:fly", "data.name=antigravity:fly", "method=antigravity:fly"]
)
def test_a_page_imports_nobodys_code(tmp_path, setting):
    key, value = setting.split("=")
    config = preset("heterofl-digits").to_toml()
    old = {"model.name": '"cnn"', "data.name": '"digits"', "method": '"heterofl"'}[key]
    assert config.count(old) == 1
    assert unfinished(tmp_path, config.replace(old, f'"{value}"')) == []


def test_settings_of_another_version_have_no_sizes(tmp_path):
    assert unfinished(tmp_path, 'name = "old"\nmethod = "heterofl"\nno_such_setting = 3') == []


@pytest.mark.slow
def test_a_summary_says_the_same_as_the_settings(tmp_path):
    for name in ("heterofl-digits", "fedavg-digits"):
        nestling.run(preset(name).with_settings(SMALL), out=tmp_path / name)
    finished = [level_results(group) for group in experiments(find([tmp_path]))]
    assert [len(results) for results in finished] == [1, 5]
    for name in ("heterofl-digits", "fedavg-digits"):
        (tmp_path / name / "summary.json").unlink()
    computed = [level_results(group) for group in experiments(find([tmp_path]))]
    for before, after in zip(finished, computed, strict=True):
        assert [(one.levels, one.cost.parameters, one.cost.macs, one.value.mean) for one in after] == [
            (one.levels, one.cost.parameters, one.cost.macs, one.value.mean) for one in before
        ]
