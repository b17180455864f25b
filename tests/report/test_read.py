"""Run directories: what is read, what is refused and how, and what is found in folders."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nestling.errors import ReportError
from nestling.report import Run, find, read
from tests.report import report_runs


def edit(directory: Path, **changes) -> None:
    """Change keys of the summary; None takes one out."""
    path = directory / "summary.json"
    kept = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in kept.items() if value is not None}))


def test_a_finished_run_says_what_its_files_say(tmp_path):
    directory = report_runs.make(tmp_path, "fedrolex", seed=2, rounds=10)
    run, last = read(directory), report_runs.lines("fedrolex", 2, 10)[-1]
    assert (run.name, run.method, run.model, run.dataset, run.partition) == (
        "fedrolex-digits",
        "fedrolex",
        "cnn",
        "digits",
        "iid",
    )
    assert (run.seed, run.rounds, run.rounds_done, run.finished, len(run.history)) == (2, 10, 10, True, 10)
    assert run.bytes == last["bytes_down"] + last["bytes_up"]
    assert run.final.values["global_accuracy"] == last["evaluation"]["global_accuracy"]
    assert run.final.submodels == last["evaluation"]["submodels"]
    assert "submodels" not in run.final.values
    assert "round" not in run.final.values
    assert run.config == (directory / "config.toml").read_text()
    assert run.levels["c"].parameters == 98_922
    assert len(run.coverage["conv4"]) == 512
    assert len(run.local) == 40


def test_an_unfinished_run_is_derived_from_its_rounds(tmp_path):
    run = read(report_runs.make(tmp_path, "nefl", seed=1, rounds=20, finished=False))
    history = report_runs.lines("nefl", 1, 20)
    assert (run.name, run.method, run.model, run.dataset, run.partition, run.seed) == (
        "nefl-digits",
        "nefl",
        "cnn",
        "digits",
        "iid",
        1,
    )
    assert (run.finished, run.rounds, run.rounds_done) == (False, 20, 10)
    assert run.final.round == 10
    assert run.client_macs == history[9]["client_macs"]
    best = max((entry["evaluation"]["global_accuracy"], -entry["round"]) for entry in history[1:10:2])
    assert (run.best.values["global_accuracy"], -run.best.round) == best


def test_a_run_that_was_stopped_early_is_unfinished(tmp_path):
    directory = report_runs.make(tmp_path)
    edit(directory, rounds_done=7)
    assert not read(directory).finished


def test_a_run_that_has_just_begun_is_no_error(tmp_path):
    directory = report_runs.make(tmp_path, finished=False)
    (directory / "metrics.jsonl").write_text("")
    run = read(directory)
    assert (run.rounds_done, run.final, run.leading, run.bytes) == (0, None, None, 0)


def test_a_line_that_is_being_written_is_left_out_but_only_the_last(tmp_path):
    directory = report_runs.make(tmp_path, finished=False)
    path = directory / "metrics.jsonl"
    path.write_text(path.read_text() + '{"round": 11, "bytes_d')
    assert read(directory).rounds_done == 10
    path.write_text(path.read_text() + "\n")
    with pytest.raises(ReportError, match=r"metrics\.jsonl, line 11: this is not JSON"):
        read(directory)


def test_a_run_that_has_ended_has_no_line_half_written(tmp_path):
    directory = report_runs.make(tmp_path, rounds=4)
    with (directory / "metrics.jsonl").open("a") as file:
        file.write('{"round": 5')
    with pytest.raises(ReportError, match=r"metrics\.jsonl, line 5: this is not JSON"):
        read(directory)


def test_rounds_that_were_run_again_replace_what_followed(tmp_path):
    directory = report_runs.make(tmp_path, finished=False)
    again = [entry | {"client_macs": 1} for entry in report_runs.lines("heterofl", 0, 20)[7:9]]
    with (directory / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(entry) + "\n" for entry in again)
    run = read(directory)
    assert [entry.round for entry in run.history] == list(range(1, 10))
    assert run.client_macs == 1


def test_numbers_that_are_not_finite_count_as_missing(tmp_path):
    directory = report_runs.make(tmp_path, finished=False)
    line = json.loads((directory / "metrics.jsonl").read_text().splitlines()[-1])
    line |= {
        "round": 11,
        "train_loss": float("nan"),
        "evaluation": {"global_accuracy": 0.1, "global_loss": float("inf")},
    }
    with (directory / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(line).replace("Infinity", "1e999") + "\n")
    run = read(directory)
    assert run.history[-1].train_loss is None
    assert run.final.values == {"global_accuracy": 0.1}


def test_a_language_model_is_led_by_its_perplexity(tmp_path):
    directory = report_runs.make(tmp_path, finished=False)
    shared = {"bytes_down": 1, "bytes_up": 1, "client_macs": 1}
    measured = [{"perplexity": value, "global_accuracy": None} for value in (90.0, 40.0, 55.0)]
    lines = [{"round": place + 1, "evaluation": actual, **shared} for place, actual in enumerate(measured)]
    (directory / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    run = read(directory)
    assert (run.leading, run.final.values["perplexity"], run.best.values["perplexity"]) == ("perplexity", 55, 40)


REFUSED = [
    ("config.toml", None, r"seed-0 is not a run directory: it holds no config\.toml$"),
    ("config.toml", 'name = "x"\nrounds = many', r"config\.toml is not TOML: .* line 2"),
    ("config.toml", b"\xff", r"config\.toml is not UTF-8 text: byte 0 is wrong$"),
    ("metrics.jsonl", None, r"holds no metrics\.jsonl$"),
    ("metrics.jsonl", "[1]\n", r"metrics\.jsonl, line 1: expected `object`, got `array`$"),
    ("metrics.jsonl", '{"round": 1}\n', r"line 1: object missing required field `bytes_down`$"),
    (
        "metrics.jsonl",
        '\n{"round": "one", "bytes_down": 1, "bytes_up": 1, "client_macs": 1}\n',
        r"line 2: expected `int`, got `str` in 'round'$",
    ),
    (
        "metrics.jsonl",
        '{"round": 1, "bytes_down": -1, "bytes_up": 1, "client_macs": 1}\n',
        r"line 1: expected `float` >= 0(\.0)? in 'bytes_down'$",
    ),
    ("metrics.jsonl", "[" * 100_000 + "\n", r"line 1: this cannot be read"),
    ("metrics.jsonl", '{"round": ' + "1" * 5000 + "}\n", r"line 1: "),
    ("summary.json", "{", r"summary\.json: this is not JSON"),
    ("summary.json", '{\n"name": }', r"summary\.json: this is not JSON \(line 2\)"),
    ("summary.json", "{}", r"summary\.json: object missing required field `method`$"),
]


@pytest.mark.parametrize(("name", "content", "sentence"), REFUSED)
def test_what_does_not_fit_is_refused_in_one_sentence(tmp_path, name, content, sentence):
    path = report_runs.make(tmp_path) / name
    path.unlink()
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ReportError, match=sentence) as caught:
        read(path.parent)
    assert "\n" not in str(caught.value)
    assert str(path.parent) in str(caught.value)


def test_an_unfinished_run_needs_whole_numbers_in_its_config(tmp_path):
    directory = report_runs.make(tmp_path, finished=False)
    (directory / "config.toml").write_text('seed = "three"')
    with pytest.raises(ReportError, match=r"'seed' must be a whole number, not 'three'$"):
        read(directory)


@settings(max_examples=60, deadline=None)
@given(
    line=st.one_of(
        st.text(),
        st.recursive(
            st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
            lambda inner: (
                st.lists(inner) | st.dictionaries(st.sampled_from(["round", "evaluation", "submodels"]), inner)
            ),
        ).map(json.dumps),
        st.dictionaries(
            st.sampled_from(["round", "bytes_down", "bytes_up", "client_macs", "evaluation", "levels"]),
            st.integers(0, 9) | st.dictionaries(st.text(max_size=3), st.floats() | st.none()),
        ).map(json.dumps),
    )
)
def test_whatever_stands_in_a_line_is_read_or_refused(tmp_path_factory, line):
    directory = report_runs.make(tmp_path_factory.mktemp("fuzz"), rounds=2)
    (directory / "metrics.jsonl").write_text(line + "\n", encoding="utf-8", errors="replace")
    try:
        assert isinstance(read(directory), Run)
    except ReportError as problem:
        refused = str(problem)
        assert "metrics.jsonl, line " in refused


def test_find_goes_down_folders_in_a_stable_order_and_returns_a_run_once(tmp_path):
    for seed in (10, 2, 0):
        report_runs.make(tmp_path, "heterofl", seed, rounds=2)
    fedavg = report_runs.make(tmp_path, "fedavg", rounds=2)
    (tmp_path / "notes").mkdir()
    report_runs.make(tmp_path / ".trash", rounds=2)
    report_runs.make(fedavg / "checkpoints", rounds=2)
    actual = [(run.method, run.seed) for run in find([tmp_path, fedavg / "checkpoints" / ".."])]
    assert actual == [("fedavg", 0), ("heterofl", 0), ("heterofl", 2), ("heterofl", 10)]
    first, *others = find([tmp_path / "heterofl-digits" / "seed-2", tmp_path])
    assert (first.seed, len(others)) == (2, 3)


def test_find_names_what_is_not_there(tmp_path):
    (tmp_path / "results").mkdir()
    with pytest.raises(ReportError, match=r"there is no directory .*result; did you mean 'results'\?"):
        find([tmp_path / "result"])
    with pytest.raises(ReportError, match=r"there is no run in .*results: a run directory holds config\.toml"):
        find([tmp_path / "results"])
    (tmp_path / "file").write_text("")
    with pytest.raises(ReportError, match="file is a file: name the run directory"):
        find([tmp_path / "file"])
