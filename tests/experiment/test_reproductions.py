"""Definitions of reproductions against presets and papers; runs that are finished, here or elsewhere."""

import json
import shutil

import msgspec
import pytest

from nestling.errors import ConfigError, RunError
from nestling.experiment.presets import PRESETS, about, find
from nestling.experiment.reproductions import (
    definitions,
    expected_cost,
    finished_runs,
    overview,
    paper_settings,
    table_runs,
)
from nestling.experiment.reproductions.overview import cells
from nestling.experiment.runner import run
from nestling.report.reproduction_table import _share, build, paper_value
from tests.quick import mostly_slow

ALL = definitions.reproductions()
PAPERS = [one for one in ALL if one.file not in ("digits", "grand", "privacy", "time")]


def by_name(tables):
    return [pytest.param(one, id=one.name) for one in tables]


def presets_of(reproduction):
    return list(dict.fromkeys(name for row in reproduction.rows for name in row.runs.values() if name in PRESETS))


# Tables and figures of the papers, counted by hand.
COUNTS = {"heterofl": (9, 11), "fedrolex": (4, 5), "nefl": (15, 3), "nefl-v2": (3, 3), "fedmorph": (9, 12)}


def test_every_table_and_figure_of_the_papers_is_named():
    expected = {
        f"{paper}-{kind}{number}"
        for paper, counts in COUNTS.items()
        for kind, count in zip(("table", "figure"), counts, strict=True)
        for number in range(1, count + 1)
    }
    assert {one.name for one in (*PAPERS, *definitions.no_experiments())} == expected


def test_what_no_run_can_repeat_is_refused_with_the_reason():
    for one in definitions.no_experiments():
        with pytest.raises(ConfigError, match=f"^{one.name} cannot be run: .{{20}}"):
            definitions.find(one.name)
    shown = cells(overview._other(definitions.no_experiments()[2]))
    assert shown["where"] == "FedRolex, Table 1: properties of methods, in words"
    assert cells(overview._entry(definitions.find("nefl-table8")))["paper"] == "12 rows, no run"


@pytest.mark.slow
@pytest.mark.parametrize("model", ["ResNet18", "ResNet34", "ResNet56", "ResNet110"])
def test_sizes_of_nefls_sub_models_are_those_of_its_table_8(model):
    """Printed figures are cut to two digits. Left out are FLOPs that contradict the table's own parameters."""
    reproduction = definitions.find("nefl-table8")
    rows = reproduction.select([f"{model}/*"])
    experiments = {run.preset: run.experiment for run in table_runs.table_runs(rows, "paper")}
    table = build(reproduction, rows, "paper", seeds=1, finished={}, experiments=experiments)
    assert table.notes[0] == "ours (the paper's); ours known without a run"
    for row in table.rows:
        assert row.seeds_text == "–"
        for column, cell in zip(reproduction.columns, row.cells, strict=True):
            if column.name == "FLOPs" and (model == "ResNet56" or row.row.name == "ResNet110/Depth"):
                continue
            assert cell.ours.mean == pytest.approx(paper_value(cell.paper), rel=0.025), (row.row.name, column.name)


def test_names_are_unique_and_begin_with_their_paper():
    names = [one.name for one in ALL]
    assert len(set(names)) == len(names)
    assert {name.partition("-")[0] for name in names} == set(definitions.PAPERS)


@pytest.mark.parametrize("reproduction", by_name(ALL))
def test_rows_name_presets_that_exist(reproduction):
    scales = [scale for scale in ("laptop", "paper") if scale in reproduction.scales]
    absent = [
        name
        for row in reproduction.rows
        for preset in row.runs.values()
        for scale in scales
        if (name := definitions.preset_at(preset, scale)) not in PRESETS
    ]
    assert not absent


@pytest.mark.parametrize("reproduction", by_name(PAPERS))
def test_presets_have_the_papers_settings_or_the_difference_is_listed(reproduction):
    names = presets_of(reproduction)
    for name in names:
        known = paper_settings.settings_of(reproduction.file, name)
        assert not [key for key in paper_settings.REQUIRED if key not in known], name
    unlisted = [one for one in paper_settings.differences(reproduction.file, names) if not one.why]
    assert not unlisted, [(one.preset, one.sentence) for one in unlisted]


@pytest.mark.parametrize("paper", ["heterofl", "fedrolex", "nefl", "fedmorph"])
def test_listed_differences_are_those_that_there_are(paper):
    """A reason that is listed for no preset would excuse the preset that differs tomorrow."""
    names = {name for one in PAPERS if one.file == paper for name in presets_of(one)}
    actual = {id(one.setting) for name in names for one in paper_settings.differences(paper, [name])}
    listed = [setting for group in paper_settings._groups(paper) for setting in group.settings if setting.why]
    assert [setting for setting in listed if id(setting) not in actual] == []


@pytest.mark.parametrize(
    ("preset", "change", "key"),
    [
        ("heterofl-mnist-iid-a-e", ["fleet.levels=a-d"], "levels"),
        ("heterofl-mnist-iid-a-e", ["options.masked=false"], "loss"),
        ("heterofl-mnist-iid-a-e", ["model.options.widths=[32, 64]"], "parameters"),
        ("fedavg-mnist-iid-e", ["model.width=0.125"], "levels"),
        ("heterofl-mnist-iid-a-e", ["local.lr_decay=0.2"], "local.lr_decay"),
    ],
)
def test_levels_loss_and_size_of_nets_are_compared(monkeypatch, preset, change, key):
    other = PRESETS[preset]().with_settings(change)
    monkeypatch.setattr(paper_settings, "PRESETS", {preset: lambda: other})
    actual = paper_settings.differences("heterofl", [preset])
    assert key in {one.setting.key for one in actual if not one.why}


def test_a_difference_that_is_not_listed_is_noticed(monkeypatch):
    name = "heterofl-mnist-iid-a-e"
    other = PRESETS[name]().with_settings(["local.lr=0.5"])
    monkeypatch.setattr(paper_settings, "PRESETS", {name: lambda: other})
    (difference,) = paper_settings.differences("heterofl", [name])
    assert difference.why == ""
    assert difference.sentence == "local.lr is 0.5 here, 0.01 by Table 6: not listed"


@pytest.mark.parametrize("name", ["heterofl-table1", "heterofl-table2", "heterofl-table7", "heterofl-table8"])
def test_levels_of_heterofls_rows_are_their_labels(name):
    for row in definitions.find(name).rows:
        if "Liang" not in row.name:
            assert {about(preset)["levels"] for preset in row.runs.values()} == {row.name}


def test_the_norms_scaler_and_loss_of_table_5_are_its_labels():
    norms = {"None": "none", "sBN": "bn", "IN": "in", "GN": "gn", "LN": "ln"}
    for row in definitions.find("heterofl-table5").rows:
        mix, norm, scaler, masked = row.label
        for preset in row.runs.values():
            experiment = find(preset)
            assert about(preset)["levels"] == mix
            assert experiment.model.options["norm"] == norms[norm]
            assert experiment.options["masked"] == (masked == "✓")
            assert experiment.options.get("scaler", "N/A") == {"✓": True, "✗": False}.get(scaler, "N/A")


@pytest.mark.parametrize("name", mostly_slow(["heterofl-table1", "heterofl-table2", "heterofl-table3"], quick=1))
def test_parameters_ratio_and_space_of_mixes_are_the_papers(name):
    reproduction = definitions.find(name)
    rows = [row for row in reproduction.rows if "Liang" not in row.name]
    runs = table_runs.table_runs(rows, "paper")
    experiments = {one.preset: one.experiment for one in runs}
    table = build(reproduction, rows, "paper", seeds=1, finished={}, experiments=experiments)
    for row in table.rows:
        for column, cell in zip(reproduction.columns, row.cells, strict=True):
            if column.measure in ("ratio", "parameters"):
                assert cell.text == cell.paper, (row.row.name, column.name)
            if column.measure == "space":  # Table 3 prints 73.49 where 19,263,486 weights are 73.484 MB
                assert float(cell.text) == pytest.approx(float(cell.paper), abs=0.011), row.row.name


@pytest.mark.parametrize(
    "name", mostly_slow(["heterofl-digits", "fedpruned-digits", "nefl-digits", "fjord-digits", "ds-fl-digits"], quick=1)
)
def test_expected_costs_are_those_of_the_run(name):
    result = run(find(name).with_settings(["rounds=6", "evaluate.every=6", "evaluate.samples=50"]))
    expected = expected_cost.run_cost(find(name).with_settings(["rounds=6"]))
    assert expected.client_macs == pytest.approx(result.summary["client_macs"], rel=0.35)  # levels are drawn
    assert expected.bytes == pytest.approx(result.summary["bytes_down"] + result.summary["bytes_up"], rel=0.35)


@pytest.mark.parametrize("name", mostly_slow(["heterofl-mnist-iid-a-e", "fedmorph-cifar10-vgg16-iid"], quick=1))
def test_stored_costs_are_those_that_are_measured(monkeypatch, name):
    stored = expected_cost.run_cost(find(name))
    assert expected_cost._key(find(name), whole=True) in expected_cost._known()
    monkeypatch.setattr(expected_cost, "_known", dict)
    assert expected_cost.run_cost(find(name)) == stored


def test_expected_hours_count_steps_and_arithmetic():
    cost = expected_cost.run_cost(find("fedavg-cifar10-iid-e-evening"))
    assert cost.steps == 256 * 10 * 50
    assert cost.hours > cost.steps * 5e-4 / 3600  # nearly all of it, as the net is tiny
    assert cost.hours == pytest.approx(cost.steps * 5e-4 / 3600, rel=0.2)
    assert expected_cost.run_cost(find("fedavg-cifar10-iid-a-evening")).hours > 5 * cost.hours


def test_tiers_are_counted_as_they_are_drawn():
    shares = [level.share for level in expected_cost.level_costs(find("nefl-digits"))]
    assert shares == pytest.approx([0.15667, 0.20667, 0.27333, 0.20667, 0.15667], abs=1e-4)


def test_rows_are_chosen_by_label_and_by_pattern():
    table5 = definitions.find("heterofl-table5")
    assert len(table5.select(["a-e/*"])) == 11
    assert [row.name for row in table5.select(["e/sBN/N/A/✗"])] == ["e/sBN/N/A/✗"]
    quoted = "FedAvg (Liang et al., 2020)"
    assert [row.name for row in definitions.find("heterofl-table1").select([quoted, "a,b"])] == ["a", "b", quoted]
    with pytest.raises(ConfigError, match="heterofl-table1 has no row 'z'"):
        definitions.find("heterofl-table1").select(["a,z"])


def test_columns_choose_the_runs_that_they_need():
    table = definitions.find("fedrolex-table3")
    low = table.with_columns(["Low CIFAR-10"])
    runs = table_runs.table_runs(low.rows, "evening")
    kinds = {run.preset.split("-cifar10-")[1] for run in runs}
    assert kinds == {"low-a-b-c-d-e-evening", "low-e-evening", "low-a-evening"}
    assert [row.name for row in low.rows] == [row.name for row in table.rows]
    assert [column.name for column in table.with_columns(["Low*, Stack Overflow"]).columns] == [
        "Low CIFAR-10",
        "Low CIFAR-100",
        "Stack Overflow",
    ]
    assert table.with_columns([]) == table
    with pytest.raises(ConfigError, match="fedrolex-table3 has no column 'Low CIFAR-11'; did you mean"):
        table.with_columns(["Low CIFAR-11"])


def test_rows_that_fill_none_of_the_columns_are_left_out():
    table = definitions.find("fedrolex-table4").with_columns(["High Global"])
    assert {row.label[0] for row in table.rows} == {"CIFAR-10", "CIFAR-100"}
    assert table.rows[0].paper == ["38.82 ± 0.88"]


def test_costs_beside_a_column_are_those_of_its_runs():
    table = definitions.find("heterofl-table1").with_columns(["Ratio", "Non-IID Global"])
    (row,) = table.select(["a-e"])
    assert row.runs == {"noniid": "heterofl-mnist-noniid-a-e"}
    runs = table_runs.table_runs([row], "paper")
    built = build(table, [row], "paper", seeds=1, finished={}, experiments={run.preset: run.experiment for run in runs})
    assert [cell.text for cell in built.rows[0].cells] == ["0.50", ""]


def test_nefls_baselines_are_its_own_and_those_of_their_authors_stand_beside():
    starts = {
        "FjORD": "fjord-nefl-",
        "FjORD (its authors')": "fjord-c",
        "DepthFL": "depthfl-c",
        "DepthFL (norms per sub-model)": "depthfl-nefl-",
    }
    for reproduction in (one for one in ALL if one.file == "nefl"):
        for row in reproduction.rows:
            start = starts.get(row.label[-1], "")
            assert all(preset.startswith((start, start.replace("-c", "-s"))) for preset in row.runs.values())
            assert bool(row.paper) == ("(its" not in row.label[-1] and "(norms" not in row.label[-1])


def test_rows_from_weights_are_not_run_without_them():
    table = definitions.find("nefl-table1")
    without = table.without_weights()
    assert {bool(row.runs) for row in without.rows if row.label[0].startswith("Pre-trained")} == {False}
    assert [row for row in without.rows if row.runs] == [row for row in table.rows if "Pre-" not in row.label[0]]
    with pytest.raises(ConfigError, match="it starts from pre-trained weights: give them as "):
        table_runs.rows_at(without, "laptop", ["Pre-trained ResNet18/NeFL (ours)"])


def test_results_name_the_file_of_weights_without_its_folder(finished, tmp_path):
    folder, runs = finished
    (done,) = table_runs.finished_runs(runs, folder, [], "1").values()
    for name in ("summary.json", "metrics.jsonl", "config.toml"):
        shutil.copy(runs[0].folder / name, tmp_path)
    config = tmp_path / "config.toml"
    config.write_text(config.read_text().replace('weights = ""', 'weights = "/some/where/net.pth"'))
    actual = finished_runs.read_run(tmp_path, done.preset, "1")
    assert actual.settings["model"]["weights"] == "net.pth"
    finished_runs.check_settings(actual, runs[0].experiment.with_settings(["model.weights=/else/where/net.pth"]), "x")
    with pytest.raises(RunError, match=r"with other settings \(model.weights\)"):
        finished_runs.check_settings(actual, runs[0].experiment, "x")


def test_shares_without_their_reference_say_so():
    table = definitions.find("fedmorph-table4").with_columns(["MNIST*"])
    rows = table.select(["FedMorph"])
    experiments = {run.preset: run.experiment for run in table_runs.table_runs(table.rows, "laptop")}
    notes = build(table, rows, "laptop", seeds=1, finished={}, experiments=experiments).notes
    assert "MNIST Params, MNIST Flops: unknown until the row 'FedAvg' has finished" in notes


def test_long_curves_keep_some_rounds_with_the_best_and_the_last():
    lines = [{"round": number} for number in range(1, 201)]
    kept = [line["round"] for line in finished_runs._few(lines, 123)]
    assert len(kept) <= finished_runs._MOST_POINTS + 1
    assert kept == sorted(kept)
    assert {123, 200} <= set(kept)
    assert finished_runs._few(lines[:30], 7) == lines[:30]
    assert finished_runs._few([], None) == []


def test_shares_are_taken_until_the_best_round_even_if_the_references_curve_has_not_got_it():
    def done(rounds, macs, best):
        curve = {"round": rounds, "bytes_down": macs, "client_macs": macs}
        return finished_runs.FinishedRun("x", 0, "1", {}, {}, {"round": best}, 1, 1, 1, 1.0, curve)

    pruned, whole = done([4, 7, 8], [40, 70, 90], best=7), done([2, 6, 8], [200, 600, 800], best=8)
    assert _share("client_macs", pruned, whole, 7) == 70 / 700
    assert _share("client_macs", pruned, whole, 8) == 90 / 800
    assert _share("client_macs", whole, pruned, 1) == 100 / 10
    assert _share("client_macs", pruned, whole, 9) is None
    assert _share("client_macs", pruned, whole, None) is None


def test_what_cannot_be_run_is_refused_in_one_sentence():
    with pytest.raises(ConfigError, match="digits-demo exists at scale laptop, not at 'paper'"):
        table_runs.rows_at(definitions.find("digits-demo"), "paper")
    demo = definitions.find("digits-demo")
    drawing = msgspec.structs.replace(demo.rows[0], runs={}, missing="it is a drawing")
    with pytest.raises(ConfigError, match="'FedAvg, largest' of digits-demo cannot be run at scale laptop: it is a"):
        table_runs.rows_at(msgspec.structs.replace(demo, rows=[drawing]), "laptop")
    with pytest.raises(ConfigError, match="there is no reproduction 'heterofl-tabel1'; did you mean"):
        definitions.find("heterofl-tabel1")


def test_a_scale_without_presets_is_refused():
    reproduction = definitions.find("nefl-table9")
    if definitions.presets_of(reproduction.rows[0], "evening"):
        pytest.skip("there are evening presets of it")
    with pytest.raises(ConfigError, match="cannot be run at scale evening: there is no preset"):
        table_runs.rows_at(reproduction, "evening")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run of the demo, and the folder of its reproduction."""
    folder = tmp_path_factory.mktemp("reproduced")
    runs = table_runs.table_runs(
        definitions.find("digits-demo").rows[2:], "laptop", settings=["rounds=1"], folder=folder
    )
    run(runs[0].experiment, out=runs[0].folder)
    return folder, runs


def test_results_survive_being_written_and_hold_no_path_of_the_machine(finished, tmp_path):
    folder, runs = finished
    (done,) = table_runs.finished_runs(runs, folder, [], "1.2.3").values()
    finished_runs.write_results(tmp_path / "results.json", [done])
    assert finished_runs.read_results(tmp_path / "results.json") == {done.key: done}
    assert done.version == "1.2.3"
    assert str(folder) not in (tmp_path / "results.json").read_text()
    assert len((tmp_path / "results.json").read_bytes()) < 5000


def test_runs_of_elsewhere_are_not_repeated(finished, tmp_path):
    folder, runs = finished
    finished_runs.write_results(tmp_path / "elsewhere.json", table_runs.finished_runs(runs, folder, [], "1").values())
    moved = [table_runs.TableRun(r.preset, r.seed, r.experiment, tmp_path / "new", r.cost) for r in runs]
    known = table_runs.finished_runs(moved, tmp_path, [tmp_path / "elsewhere.json"], "2")
    assert table_runs.run_missing(moved, known, tmp_path, version="2") == {}
    assert not (tmp_path / "new").exists()
    assert finished_runs.read_results(tmp_path / "results.json") == known  # and kept, without --results next time
    assert [one.version for one in known.values()] == ["1"]


@pytest.mark.slow
def test_every_run_is_announced_when_it_finishes(finished, tmp_path):
    _, runs = finished
    calls = []
    moved = [table_runs.TableRun(r.preset, r.seed, r.experiment, tmp_path / "run", r.cost) for r in runs]
    known = {}
    assert (
        table_runs.run_missing(moved, known, tmp_path, version="1", on_finished=lambda: calls.append(len(known))) == {}
    )
    assert calls == [1]


def test_runs_with_other_settings_are_refused(finished, tmp_path):
    folder, _ = finished
    rows = definitions.find("digits-demo").rows[2:]
    other = table_runs.table_runs(rows, "laptop", settings=["rounds=1", "local.lr=0.2"], folder=folder)
    with pytest.raises(RunError, match=r"holds fedavg-small-digits \(seed 0\) with other settings \(local.lr\)"):
        table_runs.finished_runs(other, folder, [], "1")


def test_the_generalization_gap_is_taken_over_the_rounds_since_the_last_test():
    def line(number, trained, tested=None, averaged=None):
        networks = {} if averaged is None else {"networks": {"averaged": {"accuracy": averaged}}}
        figures = {} if tested is None else {"evaluation": {"global_accuracy": tested, **networks}}
        return {"round": number, "train_accuracy": trained, **figures}

    lines = [line(1, 0.25), line(2, 0.75, 0.25), line(3, None), line(4, 1.0, 0.5, averaged=0.75), line(5, None, 0.5)]
    figures = [one["evaluation"] for one in finished_runs._evaluated(lines)]
    assert [one.get("generalization_gap") for one in figures] == [0.25, 0.5, None]
    assert [one["averaged_accuracy"] for one in figures] == [None, 0.75, None]


def test_runs_have_the_gap_and_the_networks_that_figures_draw(tmp_path):
    run(find("fedmorph-digits").with_settings(["rounds=4", "evaluate.every=2"]), out=tmp_path / "run")
    done = finished_runs.read_run(tmp_path / "run", "fedmorph-digits", "1")
    assert done.final.keys() >= {"global_accuracy", "generalization_gap", "averaged_accuracy"}
    assert [value is None for value in done.curve["averaged_accuracy"]] == [True, False]  # it morphs in round 4
    assert done.curve["generalization_gap"][-1] == done.final["generalization_gap"]


@pytest.mark.parametrize("text", ["", "[]", '{"format": "x"}', '{"format": "nestling-results-1", "runs": [{}]}'])
def test_files_that_hold_no_results_are_refused(tmp_path, text):
    path = tmp_path / "results.json"
    path.write_text(text)
    with pytest.raises(RunError, match=r"is not a results.json of 'nestling reproduce'"):
        finished_runs.read_results(path)


def test_damaged_summaries_are_refused(tmp_path):
    (tmp_path / "summary.json").write_text(json.dumps({"seed": 0}))
    with pytest.raises(RunError, match="cannot be read as a finished run"):
        finished_runs.read_run(tmp_path, "fedavg-digits", "1")


def test_the_grand_comparison_gives_every_method_the_same_arithmetic():
    """But FedMorph, whose network shrinks, and the steps from one stage of DepthFL to the next."""
    (grand,) = (one for one in ALL if one.file == "grand")
    assert len(grand.rows) == 12
    for row in grand.rows[:8]:
        experiment = PRESETS[f"{row.runs['only']}-evening"]()
        macs = sum(level.share * level.macs for level in expected_cost.level_costs(experiment))
        samples = expected_cost.samples_per_client(experiment)
        assert experiment.rounds % 10 == 0
        assert experiment.evaluate.every * 10 == experiment.rounds
        assert 3 * 10 * samples * macs * experiment.rounds == pytest.approx(22e12, rel=0.03), row.name
