"""progress.json: there while a run goes on and gone after it, complete at any time, and no part of the results."""

import json
import os
import subprocess
import sys

import pytest

from nestling.errors import NestlingError
from nestling.experiment import resume, run
from nestling.experiment.callback import Callback
from nestling.experiment.directory import PROGRESS
from nestling.experiment.progress_file import ProgressWriter, read_progress
from tests.processes import wait_until
from tests.run_cases import tiny


class Look(Callback):
    """Keeps what progress.json says whenever a client has ended."""

    def __init__(self, folder, stop_after=10**9):
        self._folder, self._left, self.seen = folder, stop_after, []

    def on_client(self):
        self.seen.append(json.loads((self._folder / PROGRESS).read_text()))
        self._left -= 1
        if self._left == 0:
            raise NestlingError("stopped by the test")


def test_it_tells_who_trains_and_is_gone_at_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr("nestling.experiment.progress_file._EVERY", 0.0)
    look = Look(tmp_path / "run")
    run(tiny(rounds=3), out=tmp_path / "run", callbacks=[look], quiet=True)
    assert not (tmp_path / "run" / PROGRESS).exists()
    assert {"round": 0, "rounds": 3, "process": os.getpid(), "phase": "training"}.items() <= look.seen[0].items()
    assert [seen["share"] for seen in look.seen] == sorted(seen["share"] for seen in look.seen)
    assert look.seen[0]["left"] > 0
    last = look.seen[-1]
    assert last["clients"] == {"jobs": 2, "done": 2, "training": 0}
    assert sum(level["jobs"] for level in last["levels"].values()) == 2
    assert last["metric"]["name"] == "accuracy"
    assert 0 <= last["metric"]["value"] <= 1


def test_results_are_the_same_bytes_without_it(tmp_path):
    run(tiny(rounds=3), out=tmp_path / "run", callbacks=[Look(tmp_path / "run")], quiet=True)
    result = run(tiny(rounds=3), quiet=True)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert lines == result.rounds


def test_a_stopped_run_leaves_none_and_a_killed_one_is_known_to_be_dead(tmp_path):
    with pytest.raises(NestlingError, match="stopped by the test"):
        run(tiny(rounds=3), out=tmp_path / "run", callbacks=[Look(tmp_path / "run", stop_after=3)], quiet=True)
    assert not (tmp_path / "run" / PROGRESS).exists()
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    left_behind = {"process": child.pid, "host": os.uname().nodename, "share": 0.2}
    (tmp_path / "run" / PROGRESS).write_text(json.dumps(left_behind))
    (tmp_path / "run" / ".progress.json.unsynced").write_text("{")
    assert read_progress(tmp_path / "run") is None
    resume(tmp_path / "run", quiet=True)
    assert not list((tmp_path / "run").glob("*progress*")) + list((tmp_path / "run").glob(".*progress*"))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"process": "1"}', '{"share": 0.5}'])
def test_damage_is_no_progress(tmp_path, text):
    (tmp_path / PROGRESS).write_text(text)
    assert read_progress(tmp_path) is None


def test_the_last_content_is_written_though_it_came_too_early(tmp_path):
    writer = ProgressWriter(tmp_path)
    for share in range(100):
        writer.write({"share": share})
    assert read_progress(tmp_path)["share"] == 0
    wait_until(lambda: read_progress(tmp_path)["share"] == 99, limit=60)
    writer.write({"share": 100})
    writer.close()
    assert not (tmp_path / PROGRESS).exists()
