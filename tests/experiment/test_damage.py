"""Damaged files: the last good checkpoint is used, and what cannot be mended is one sentence, never other numbers."""

import hashlib
import shutil

import pytest

from nestling.errors import RunError
from nestling.events import collect
from nestling.experiment import load, resume, run
from nestling.experiment.checkpoint import read, saved
from nestling.experiment.simulation import Overrides, simulate
from nestling.settings import Evaluate
from nestling.upload import Upload
from tests.experiment.test_resume import Stop
from tests.run_cases import outcome, tiny

ROUNDS = 6


def experiment(**changes):
    """Clients keep something to themselves and remember what they did not send: all kinds of files."""
    upload = Upload(format="topk", fraction=0.2, feedback=True)
    settings = {"method": "lg-fedavg", "rounds": ROUNDS, "checkpoint_every": 2, "upload": upload}
    return tiny(**{**settings, "evaluate": Evaluate(every=2, samples=20), **changes})


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run as it is after five rounds of six (checkpoints of rounds 4 and 5), and the same run at its end."""
    place = tmp_path_factory.mktemp("damage")
    run(experiment(), out=place / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(experiment(), out=place / "cut", callbacks=[Stop(rounds=5)])
    assert [path.name for path in saved(place / "cut")] == ["round-000004", "round-000005"]
    return place / "cut", place / "whole"


@pytest.fixture
def copy(tmp_path, stopped):
    shutil.copytree(stopped[0], tmp_path / "run")
    return tmp_path / "run"


def flip(path, place=0.5):
    """Change one bit of a file."""
    content = bytearray(path.read_bytes())
    content[int(len(content) * place)] ^= 1
    path.write_bytes(content)


def belongings(folder, kind, place):
    """The files of single clients that belong to one checkpoint and not to another."""
    names = [
        {line.split("  ")[1] for line in (path / "SHA256SUMS").read_text().splitlines() if f"/{kind}/" in line}
        for path in saved(folder)
    ]
    return sorted(names[place] - names[1 - place])


@pytest.mark.parametrize(
    "name",
    [
        "state.safetensors",
        "memory.safetensors",
        "coverage.safetensors",
        "notes.safetensors",
        "figures.json",
        "SHA256SUMS",
    ],
)
def test_a_flipped_bit_in_the_newest_checkpoint_costs_one_checkpoint(copy, stopped, name):
    flip(saved(copy)[-1] / name)
    with collect() as events:
        resume(copy)
    (event,) = [event for event in events if event.kind == "checkpoint damaged"]
    assert "round-000005 cannot be read" in event.message
    assert event.message.endswith("the run goes on from round-000004")
    assert outcome(copy) == outcome(stopped[1])


@pytest.mark.parametrize("damage", ["flip", "remove"])
@pytest.mark.parametrize("kind", ["private", "memory"])
def test_files_of_single_clients_have_checksums_too(copy, stopped, kind, damage):
    name = belongings(copy, kind, 1)[0].rpartition("/")[2]
    flip(copy / kind / name) if damage == "flip" else (copy / kind / name).unlink()
    with collect() as events:
        resume(copy)
    assert f"{kind}/{name} {'does not match its checksum' if damage == 'flip' else 'is missing'}" in events[0].message
    assert outcome(copy) == outcome(stopped[1])


def test_no_flipped_bit_goes_unnoticed(copy):
    setup = simulate(Overrides(experiment())).setup
    for path in [*saved(copy)[-1].iterdir(), copy / "private" / belongings(copy, "private", 1)[0].rpartition("/")[2]]:
        for place in (0, 0.01, 0.2, 0.4, 0.6, 0.8, 0.999):
            flip(path, place)
            with collect() as events:
                assert read(copy, setup).round == 4, (path, place)
            assert [event.kind for event in events] == ["checkpoint damaged"]
            flip(path, place)
    assert read(copy, setup).round == 5


def test_what_is_there_of_a_checkpoint_may_be_little(copy, stopped):
    for path in saved(copy)[-1].iterdir():
        path.unlink()
    with collect() as events:
        resume(copy)
    assert events[0].kind == "checkpoint damaged"
    assert outcome(copy) == outcome(stopped[1])


def test_a_run_that_is_over_mends_itself(tmp_path, stopped):
    shutil.copytree(stopped[1], tmp_path / "run")
    flip(saved(tmp_path / "run")[-1] / "state.safetensors")
    with collect() as events:
        resume(tmp_path / "run")
    assert [event.kind for event in events] == ["checkpoint damaged"]
    assert outcome(tmp_path / "run") == outcome(stopped[1])


def test_all_damaged_is_refused_and_nothing_is_lost(copy):
    for place in saved(copy):
        flip(place / "state.safetensors")
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    with pytest.raises(
        RunError, match=r"round-000005 cannot be read: state\.safetensors does not match its checksum; no"
    ):
        resume(copy)
    assert {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("what", ["folder", "content"])
def test_all_gone_is_refused(copy, what):
    shutil.rmtree(copy / "checkpoints")
    if what == "content":
        (copy / "checkpoints").mkdir()
    before = (copy / "metrics.jsonl").read_bytes()
    with pytest.raises(
        RunError, match=r"has lost all its checkpoints: put back a copy of 'checkpoints', or start a new"
    ):
        resume(copy)
    assert (copy / "metrics.jsonl").read_bytes() == before


def test_a_run_that_never_saved_starts_over(tmp_path, stopped):
    """It was killed before its first checkpoint was in place."""
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("config.toml", "identity.json"):
        shutil.copy(stopped[0] / name, folder)
    lines = (stopped[0] / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_bytes(b"".join(lines[:2]))
    (folder / "checkpoints" / ".round-000002").mkdir(parents=True)
    resume(folder)
    assert outcome(folder) == outcome(stopped[1])


def test_files_of_every_kept_checkpoint_are_kept(copy):
    for kind in ("private", "memory"):
        older = belongings(copy, kind, 0)
        assert older  # clients that took part in round 5 and before
        assert all((copy / kind / name.rpartition("/")[2]).is_file() for name in older)
        listed = {name.rpartition("/")[2] for place in (0, 1) for name in belongings(copy, kind, place)}
        assert {path.name for path in (copy / kind).iterdir()} >= listed


def test_checksums_are_those_of_sha256sum(copy):
    place = saved(copy)[-1]
    lines = (place / "SHA256SUMS").read_text().splitlines()
    assert len(lines) > 6
    for line in lines:
        value, name = line.split("  ")
        assert hashlib.sha256((place / name).read_bytes()).hexdigest() == value


def test_looking_at_a_run_removes_nothing(copy):
    """`load` holds no lock: the run may be under way."""
    (copy / "private" / "0-6.safetensors").write_bytes(b"a client's file of the next checkpoint")
    flip(saved(copy)[-1] / "state.safetensors")
    before = sorted(copy.rglob("*"))
    with collect() as events:
        load(copy).submodel()
    assert sorted(copy.rglob("*")) == before
    assert [event.kind for event in events] == ["checkpoint damaged"]


def test_checkpoints_of_an_unknown_format_are_refused(copy):
    place = saved(copy)[-1]
    figures, sums = place / "figures.json", place / "SHA256SUMS"
    before = hashlib.sha256(figures.read_bytes()).hexdigest()
    figures.write_text(figures.read_text().replace("checkpoint-3", "checkpoint-9"))
    sums.write_text(sums.read_text().replace(before, hashlib.sha256(figures.read_bytes()).hexdigest()))
    with pytest.raises(RunError, match=r"is of another kind \('nestling-checkpoint-9', not 'nestling-checkpoint-3'\)"):
        resume(copy)


@pytest.mark.parametrize("tail", [b"\xff\xfe\x00", b'{"round": 6, "half a li', b'{"round": 99}\n\xc3'])
@pytest.mark.parametrize("over", [True, False])
def test_bytes_after_the_last_whole_line_are_cut_off(tmp_path, stopped, tail, over):
    shutil.copytree(stopped[over], tmp_path / "run")
    with (tmp_path / "run" / "metrics.jsonl").open("ab") as file:
        file.write(tail)
    resume(tmp_path / "run")
    assert outcome(tmp_path / "run") == outcome(stopped[1])


@pytest.mark.parametrize("content", [b"", b"\xff", b"[]"])
def test_a_damaged_stop_watch_costs_the_time_alone(copy, stopped, content):
    (copy / "seconds.json").write_bytes(content)
    with collect() as events:
        resume(copy)
    assert [event.kind for event in events] == ["stop watch lost"]
    assert outcome(copy) == outcome(stopped[1])


def damaged(lines, damage):
    return {
        "shorter": lines[:3],
        "not UTF-8": [lines[0], b"\xff" + lines[1], *lines[2:]],
        "not JSON": [lines[0], lines[1][5:], *lines[2:]],
        "another digit": [lines[0].replace(b'"clients": 2', b'"clients": 3'), *lines[1:]],
        "swapped": [lines[1], lines[0], *lines[2:]],
        "gone": [],
    }[damage]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("shorter", "tells of 3 rounds, but the checkpoint of 5"),
        ("not UTF-8", "line 2, is not what round 2 wrote"),
        ("not JSON", "line 2, is not what round 2 wrote"),
        ("another digit", "was changed after the checkpoint of round 5 was written"),
        ("swapped", "line 1, is not what round 1 wrote"),
        ("gone", "tells of 0 rounds, but the checkpoint of 5"),
    ],
)
def test_other_damage_to_the_record_is_one_sentence(copy, damage, words):
    path = copy / "metrics.jsonl"
    lines = damaged(path.read_bytes().splitlines(keepends=True), damage)
    path.write_bytes(b"".join(lines))
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    with pytest.raises(RunError, match=rf"metrics\.jsonl.* {words}: put back a copy") as problem:
        resume(copy, rounds=8)
    assert "\n" not in str(problem.value)
    assert {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()} == before


def test_a_damaged_summary_is_written_again(tmp_path, stopped):
    shutil.copytree(stopped[1], tmp_path / "run")
    (tmp_path / "run" / "summary.json").write_text("{")
    with collect() as events:
        resume(tmp_path / "run")
    assert [event.kind for event in events] == ["summary damaged"]
    assert outcome(tmp_path / "run") == outcome(stopped[1])
