"""What sizes cost and score, also of runs that have no summary yet."""

import nestling
from nestling.experiment import find as preset
from nestling.report import experiments, find
from nestling.report.level_results import level_results

SMALL = ["rounds=2", "evaluate.every=1", "local.epochs=1", "evaluate.norm_clients=2"]


def test_an_unfinished_run_has_the_sizes_that_it_will_have(tmp_path):
    for name in ("heterofl-digits", "fedavg-digits"):
        nestling.run(preset(name).with_settings(SMALL), out=tmp_path / name)
    finished = [level_results(group) for group in experiments(find([tmp_path]))]
    assert [len(results) for results in finished] == [1, 5]
    for name in ("heterofl-digits", "fedavg-digits"):
        (tmp_path / name / "summary.json").unlink()
    unfinished = [level_results(group) for group in experiments(find([tmp_path]))]
    for before, after in zip(finished, unfinished, strict=True):
        assert [(one.levels, one.cost.parameters, one.cost.macs) for one in after] == [
            (one.levels, one.cost.parameters, one.cost.macs) for one in before
        ]
        assert [one.value.mean for one in after] == [one.value.mean for one in before]


def test_a_page_imports_nobodys_code(tmp_path):
    directory = tmp_path / "run"
    nestling.run(preset("heterofl-digits").with_settings(SMALL), out=directory)
    (directory / "summary.json").unlink()
    config = (directory / "config.toml").read_text()
    (directory / "config.toml").write_text(config.replace('name = "cnn"', 'name = "antigravity:fly"'))
    (group,) = experiments(find([tmp_path]))
    assert level_results(group) == []
